"""Accuracy with its interval, and what the answers cost, on the embedded pair."""

from __future__ import annotations

import json
from functools import cache

from simsd import LLM, SamplingParams
from simsd.evaluation.accuracy import measure
from simsd.evaluation.statistics import wilson
from simsd.evaluation.suites import Question, load_suite

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
    assert together.tokens_per_forward == alone.tokens_per_forward == alone.stats.tokens_per_forward
    assert together.stats.rounds < alone.stats.rounds


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


def test_raw_questions_are_continued_as_they_are() -> None:
    question = Question(
        "trivia", "<|im_start|>user\nWhat is the capital of Qatar?<|im_end|>\n<|im_start|>assistant\n", "Doha"
    )
    assert measure(llm(), "raw", [question], SHORT, raw=True)[0].right == 1
