"""Accuracy with its interval, and what the answers cost, on the embedded pair."""

from __future__ import annotations

import json
from functools import cache

import pytest

from simsd import LLM, SamplingParams
from simsd.evaluation import accuracy, asking
from simsd.evaluation.accuracy import Answer, Interrupted, measure
from simsd.evaluation.statistics import wilson
from simsd.evaluation.suites import Question, load_suite, messages

SHORT = SamplingParams(max_tokens=96)


@cache
def llm(batch: int = 8) -> LLM:
    return LLM(max_num_seqs=batch, num_speculative_tokens=8)  # a window of its own would follow the clock


def test_a_suite_is_asked_graded_and_counted() -> None:
    questions = load_suite("trivia", limit=6)
    result, answers = measure(llm(), "trivia", questions, SHORT)
    assert [answer.question for answer in answers] == questions
    assert result.right == sum(answer.right for answer in answers) >= 4  # the pair knows most of them
    assert result.questions == 6
    assert result.cost.stats.tokens == sum(answer.completion.stats.tokens for answer in answers)
    assert result.cost.finish_reasons == {"stop": 6}
    assert json.loads(json.dumps(result.to_dict()))["interval"] == list(wilson(result.accuracy, 6))


def test_tokens_per_forward_do_not_depend_on_the_batch() -> None:
    questions = load_suite("trivia", limit=4)
    alone = measure(llm(1), "trivia", questions, SHORT)[0].cost
    together = measure(llm(), "trivia", questions, SHORT)[0].cost
    assert together.stats.tokens_per_forward == alone.stats.tokens_per_forward > 1
    assert together.stats.target_forwards == alone.stats.target_forwards == alone.batch_forwards
    assert together.batch_forwards < alone.batch_forwards


@pytest.mark.parametrize("name", ["tokens_per_forward", "acceptance_rate", "tokens_per_second"])
def test_a_figure_is_the_same_wherever_it_stands(name: str) -> None:
    result = measure(llm(), "trivia", load_suite("trivia", limit=4), SHORT)[0]
    found = result.to_dict()
    assert found[name] == found["stats"][name] == getattr(result.cost.stats, name) > 0


@pytest.mark.parametrize("batch", [1, 8])
def test_counts_are_those_of_the_answers_and_hold_nothing_of_the_warm_up(batch: int) -> None:
    result, answers = measure(llm(batch), "choice", load_suite("choice", limit=3), SHORT)
    own = llm(batch).with_options()
    texts = own.chat([messages(answer.question) for answer in answers], SHORT)
    assert [answer.completion.text for answer in answers] == [text.text for text in texts]
    assert result.cost.batch_forwards == own.totals.target_forwards
    for name in ("tokens", "prompt_tokens", "prefill_tokens", "rounds", "drafted_tokens", "query_tokens"):
        assert getattr(result.cost.stats, name) == sum(getattr(text.stats, name) for text in texts), name


def test_the_warm_up_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither counts nor prompts in the cache, of which the measured ones would make use."""
    cold = llm().with_options()
    monkeypatch.setattr(LLM, "with_options", lambda own, **_: own)
    monkeypatch.setattr(asking, "warm_up", lambda *_: None)
    without = measure(cold, "math", load_suite("math", limit=2), SHORT)[0].cost
    monkeypatch.undo()
    with_it = measure(llm(), "math", load_suite("math", limit=2), SHORT)[0].cost
    assert with_it.stats.prefill_tokens == without.stats.prefill_tokens > 0
    assert with_it.batch_forwards == without.batch_forwards


def test_each_run_counts_for_itself() -> None:
    questions = load_suite("choice", limit=2)
    costs = [measure(llm(), "choice", questions, SHORT)[0].cost.stats for _ in range(2)]
    assert costs[0].tokens == costs[1].tokens > 0


def test_a_question_that_fails_alone_is_a_wrong_answer() -> None:
    questions = [Question("trivia", "What is <|MASK|>?", "x"), *load_suite("trivia", limit=2)]
    result, answers = measure(llm(), "mine", questions, SHORT)
    assert result.cost.finish_reasons["error"] == 1
    assert not answers[0].right
    assert "MASK" in answers[0].to_dict()["error"]
    assert answers[1].to_dict()["error"] is None and answers[1].completion.text
    assert (result.failed, result.questions, result.partial) == (1, 3, False)
    assert result.failure == answers[0].to_dict()["error"] == result.to_dict()["failure"]


@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("at", [0, 1, 3, 5])
def test_an_interruption_keeps_the_finished_answers_in_order(
    batch: int, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while answer number `at` is graded, or in the warm-up."""
    questions = load_suite("trivia", limit=6)
    graded: list[str] = []

    def grade(question: Question, text: str) -> bool:
        if len(graded) == at:
            raise KeyboardInterrupt
        graded.append(question.question)
        return True

    kept: list[Answer] = []
    monkeypatch.setattr(accuracy, "grade", grade)
    with pytest.raises(Interrupted) as stop:
        measure(llm(batch), "trivia", questions, SHORT, keep=kept.append)
    result = stop.value.result
    assert (result.questions, result.right, result.asked, result.partial) == (at, at, 6, True)
    places = [questions.index(answer.question) for answer in kept]
    assert places == sorted(places) and {answer.question.question for answer in kept} == set(graded)
    assert result.cost.stats.tokens == sum(answer.completion.stats.tokens for answer in kept)


def test_an_interruption_before_the_first_answer_is_an_empty_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: LLM) -> None:
        raise KeyboardInterrupt

    own = llm()
    monkeypatch.setattr(LLM, "step", stop)
    with pytest.raises(Interrupted, match="after 0 of 2 questions") as caught:
        measure(own, "trivia", load_suite("trivia", limit=2), SHORT)
    assert json.loads(json.dumps(caught.value.result.to_dict()))["interval"] == [0, 1]


def test_raw_questions_are_continued_as_they_are() -> None:
    question = Question(
        "trivia", "<|im_start|>user\nWhat is the capital of Qatar?<|im_end|>\n<|im_start|>assistant\n", "Doha"
    )
    assert measure(llm(), "raw", [question], SHORT, raw=True)[0].right == 1
