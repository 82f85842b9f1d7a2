"""The harness's view of the embedded pair: text, log-likelihoods, and what a request may ask for."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from simsd import LLM, ConfigError, SamplingParams

pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from simsd.evaluation import asking
from simsd.evaluation.harness import SimsdLM

CAPITAL = [{"role": "user", "content": "What is the capital of Qatar?"}]
COUNT = [{"role": "user", "content": "Count from 3 in steps of 4, 12 numbers."}]


@cache
def llm() -> LLM:
    return LLM(dtype="float64")


def model(**arguments: Any) -> SimsdLM:
    return SimsdLM(llm(), **arguments)


def requests(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(request_type=kind, doc={}, arguments=each, idx=0) for each in arguments]  # type: ignore[arg-type]


def texts(lm: SimsdLM, *arguments: tuple[str, dict[str, Any]]) -> list[str]:
    return lm.generate_until(requests("generate_until", *arguments))


def prompts_of(lm: SimsdLM, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What reaches the model from here on."""
    seen: list[list[int]] = []
    opened = lm.llm.open

    def listening(prompt: list[int], *rest: Any) -> Any:
        seen.append(prompt)
        return opened(prompt, *rest)

    monkeypatch.setattr(lm.llm, "open", listening)
    monkeypatch.setattr(asking, "warm_up", lambda *_: None)
    return seen


# ---------------------------------------------------------------------- the model in the harness
def test_the_harness_knows_the_model_and_the_package_announces_it() -> None:
    assert get_model("simsd") is SimsdLM
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    announced = re.search(r'^\[project.entry-points."lm_eval.models"\]\nsimsd = "(.*):(.*)"$', project, re.MULTILINE)
    assert announced is not None
    assert getattr(import_module(announced[1]), announced[2]) is SimsdLM


def test_arguments_become_those_of_the_llm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    lm = SimsdLM.create_from_arg_string(
        "pretrained=tiny,method=simsd,num_speculative_tokens=3,remasking_strategy=low_confidence_dynamic,"
        "confidence_threshold=0.7,dtype=float32,max_gen_toks=17,max_length=64",
        {"batch_size": "3", "max_batch_size": None, "device": "cuda:0"},
    )
    assert (lm.llm.options.method, lm.llm.options.num_speculative_tokens) == ("simsd", 3)
    assert (lm.llm.options.remasking_strategy, lm.llm.options.confidence_threshold) == ("low_confidence_dynamic", 0.7)
    assert lm.llm._target.model.device.type == "cpu"
    assert (lm.max_gen_toks, lm.max_length, lm.llm.max_num_seqs) == (17, 64, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metod": "exact"}, "unknown option 'metod'"),
        ({"method": "fast"}, "method is 'fast'"),
        ({"max_gen_toks": 0}, "max_gen_toks is 0"),
        ({"batch_size": "many"}, "max_num_seqs is 'many'"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model(**arguments)


def test_tokenizer_and_template_have_one_name() -> None:
    assert model().tokenizer_name == model().tokenizer_name
    assert model().chat_template(True) == llm().tokenizer.chat_template
    assert (model().eot_token_id, model().prefix_token_id) == (2, 2)


# ---------------------------------------------------------------------- text
def test_answers_are_those_of_chat_and_keep_their_order() -> None:
    lm = model(batch_size=2)
    asked = [(lm.apply_chat_template(messages), {"until": []}) for messages in (COUNT, CAPITAL, COUNT)]
    expected = [completion.text for completion in llm().chat([COUNT, CAPITAL, COUNT], SamplingParams(max_tokens=256))]
    assert texts(lm, *asked) == expected
    assert lm.cost.finish_reasons == {"stop": 3}
    assert lm.get_model_info()["simsd"]["stats"]["tokens"] == lm.cost.stats.tokens > 20


def test_text_ends_before_until_and_at_the_longest_length_of_its_own_request() -> None:
    lm = model(max_gen_toks=9)
    prompt = lm.apply_chat_template(COUNT)
    whole = texts(lm, (prompt, {"until": [], "max_gen_toks": 200}))[0]
    assert whole == "3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47."
    found = texts(
        lm,
        (prompt, {"until": "11", "max_gen_toks": 200}),
        (prompt, {"until": ["", "19", "15"], "max_tokens": 200}),
        (prompt, {"until": []}),
    )
    assert found[:2] == ["3, 7, ", "3, 7, 11, "]
    assert len(lm.tok_encode(found[2])) <= 9 and whole.startswith(found[2])


def test_a_stop_string_that_is_a_special_token_stops_by_its_id() -> None:
    lm = model()
    prompt = lm.apply_chat_template(COUNT)
    params = lm._params({"until": ["<|im_start|>", "47"]}, 0)
    assert list(params.stop_token_ids) == lm.tokenizer.encode("<|im_start|>")  # type: ignore[attr-defined]
    assert texts(lm, (prompt, {"until": ["<|im_end|>"]}))[0].endswith("47.")


def test_prompts_reach_the_model_whole_or_lose_their_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model(max_length=64)
    seen = prompts_of(lm, monkeypatch)
    long, short = "Count from 3 in steps of 4, 12 numbers. " * 20, "Count from 3."
    with pytest.warns(UserWarning, match="2 of 3 prompts were cut from the left"):
        texts(lm, (long, {"max_gen_toks": 24}), (short, {"max_gen_toks": 24}), (long, {"max_gen_toks": 500}))
    ids = lm.tok_encode(long)
    assert seen == [ids[-40:], lm.tok_encode(short), ids[-32:]]


def test_sampling_repeats_differ_and_the_seed_decides() -> None:
    lm = model()
    story = lm.apply_chat_template([{"role": "user", "content": "Tell a short story about Ava, Ben and some cups."}])
    given = {"do_sample": True, "temperature": 1.5, "seed": 5, "max_gen_toks": 24}
    first = texts(lm, *[(story, given)] * 3)
    assert len(set(first)) == 3
    assert texts(lm, *[(story, given)] * 3) == first


def test_generation_arguments_mean_what_the_harness_means() -> None:
    lm = model()
    greedy = lm._params({"do_sample": False, "temperature": 0.8}, 0)
    assert greedy.temperature == 0
    warm = lm._params({"do_sample": True, "top_p": 0.9, "top_k": 5, "remasking_strategy": "sequential"}, 0)
    assert (warm.temperature, warm.top_p, warm.top_k, warm.remasking_strategy) == (1.0, 0.9, 5, "sequential")
    with pytest.warns(UserWarning, match="num_beams=4 is not supported"):
        lm._params({"num_beams": 4}, 0)


def test_a_request_that_fails_harms_no_other() -> None:
    lm = model()
    with pytest.warns(UserWarning, match="MASK"):
        found = texts(lm, ("<|MASK|>", {}), (lm.apply_chat_template(CAPITAL), {}))
    assert found == ["", "Doha"]


def test_an_answer_that_is_begun_goes_on() -> None:
    lm = model()
    prompt = lm.apply_chat_template(
        [*COUNT, {"role": "assistant", "content": "3, 7, 11,"}], add_generation_prompt=False
    )
    assert prompt.endswith("assistant\n3, 7, 11,")
    assert texts(lm, (prompt, {}))[0].strip().startswith("15, 19")


# ---------------------------------------------------------------------- log-likelihoods
def test_log_likelihoods_are_those_of_the_llm_in_the_order_asked() -> None:
    lm = model()
    pairs = [("The capital of Qatar is", " Doha"), ("Two and two", " are four"), ("The capital of Qatar is", " Oslo")]
    found = lm.loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)
    for (context, continuation), (total, greedy) in zip(pairs, found, strict=True):
        ids = lm.tok_encode(context)
        score = llm().score(ids, [lm.tok_encode(context + continuation)[len(ids) :]])[0]
        assert (total, greedy) == (pytest.approx(score.total, abs=1e-9), score.is_greedy)


def test_without_a_context_the_prefix_token_stands_before_the_text() -> None:
    lm = model()
    found = lm.loglikelihood(requests("loglikelihood", ("", "Doha")), disable_tqdm=True)
    assert found[0][0] == pytest.approx(llm().score([lm.prefix_token_id], ["Doha"])[0].total, abs=1e-9)


def test_a_context_that_is_too_long_loses_its_beginning() -> None:
    lm = model(max_length=32)
    context, continuation = "one two three four " * 10, "five six"
    with pytest.warns(UserWarning, match="1 of 1 texts were cut"):
        found = lm.loglikelihood(requests("loglikelihood", (context, continuation)), disable_tqdm=True)
    whole = lm.tok_encode(context + continuation)
    said = len(whole) - len(lm.tok_encode(context.rstrip()))  # the harness scores the space with the continuation
    score = llm().score(whole[-32:-said], [whole[-said:]])[0]
    assert found[0][0] == pytest.approx(score.total, abs=1e-9)


@pytest.mark.parametrize("length", [1, 15, 16, 40])
def test_a_rolling_log_likelihood_scores_every_token_once(length: int) -> None:
    lm = model(max_length=16)
    ids = [5 + (7 * index) % 1000 for index in range(length)]
    text = lm.tokenizer.decode(ids)  # type: ignore[attr-defined]
    ids = lm.tok_encode(text)
    windows = [ids[at : at + 15] for at in range(0, len(ids), 15)]
    befores = [lm.prefix_token_id, *(window[-1] for window in windows)]
    expected = 0.0
    for index, window in enumerate(windows):
        # the last window reaches back, so that it has a full context
        whole = index == 0 or len(window) == 15
        context = [befores[index]] if whole else ids[-16 : len(ids) - len(window)]
        expected += llm().score(context, [window])[0].total
    found = lm.loglikelihood_rolling(requests("loglikelihood_rolling", (text,)), disable_tqdm=True)
    assert found == [pytest.approx(expected, abs=1e-9)]


def test_nothing_is_certain() -> None:
    assert model().loglikelihood_rolling(requests("loglikelihood_rolling", ("",)), disable_tqdm=True) == [0.0]
