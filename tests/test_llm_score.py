"""`LLM.score` on the embedded pair: what it takes and what it refuses."""

from __future__ import annotations

from functools import cache

import pytest

from simsd import LLM, PromptError, SamplingParams

QUESTION = "<|im_start|>user\nWhat is the capital of Qatar?<|im_end|>\n<|im_start|>assistant\n"


@cache
def llm() -> LLM:
    return LLM(dtype="float64")


def test_the_right_answer_is_the_likelier_one() -> None:
    right, wrong = llm().score(QUESTION, ["Doha", "Oslo"])
    assert right.total > -1 > wrong.total
    assert right.is_greedy and not wrong.is_greedy


def test_text_and_its_ids_are_the_same_request() -> None:
    encode = llm().tokenizer.encode
    text = llm().score(QUESTION, ["Doha", ""])
    ids = llm().score(encode(QUESTION), [encode("Doha"), []])
    assert [score.logprobs for score in text] == [pytest.approx(score.logprobs) for score in ids]
    assert len(text[0].logprobs) == len(encode("Doha"))


def test_what_sequential_decoding_writes_is_greedy_and_scored_with_its_own_log_probabilities() -> None:
    params = SamplingParams(max_tokens=40, logprobs=True, remasking_strategy="sequential", ignore_eos=True)
    written = llm().with_options(method="none").generate(QUESTION, params)[0]
    score = llm().score(QUESTION, [written.token_ids])[0]
    assert score.is_greedy
    assert score.logprobs == pytest.approx(written.logprobs, abs=1e-9)


@pytest.mark.parametrize(
    ("context", "continuation", "message"),
    [
        ([5, 3], [6], r"the context holds the MASK token \(id 3\)"),
        ([5], [3], "the continuation holds the MASK token"),
        ([5], [2048], "token id 2048 is not in the vocabulary"),
        ([5] * 1000, [6] * 25, "1025 tokens together"),
        (7, "a", "a context is int"),
    ],
)
def test_a_bad_request_is_one_sentence(context: object, continuation: object, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        llm().score(context, ["fine", continuation])  # type: ignore[arg-type,list-item]
