"""The questions: the embedded suites are reproduced from their seed, and training never sees them."""

from __future__ import annotations

import random

import pytest

from simsd.evaluation.graders import grade
from simsd.evaluation.suites import SUITES, Question, load_suite
from training.make_suites import suite
from training.skills import SKILLS, WEIGHTS, draw, held_out


def question(sample: dict) -> Question:
    return Question(sample["skill"], sample["question"], sample["answer"], tuple(sample.get("tests", ())))


@pytest.mark.parametrize("skill", SUITES)
def test_embedded_suite_is_reproduced(skill: str) -> None:
    assert [question(sample) for sample in suite(skill, seed=11, count=60)] == load_suite(skill, 60)


@pytest.mark.parametrize("skill", SUITES)
def test_suites_hold_only_held_out_questions(skill: str) -> None:
    assert all(held_out({"question": q.question}) for q in load_suite(skill))


def test_training_draws_no_held_out_question() -> None:
    r = random.Random(3)
    assert not any(held_out(draw(r)) for _ in range(2000))


@pytest.mark.parametrize("skill", [skill for skill in SUITES if skill != "code"])
def test_every_kind_of_answer_grades_true(skill: str) -> None:
    r = random.Random(4)
    for _ in range(300):
        sample = SKILLS[skill](r)
        assert grade(question(sample), sample["answer"])


def test_shares_add_up() -> None:
    assert list(WEIGHTS) == list(SKILLS) == list(SUITES)
    assert sum(WEIGHTS.values()) == pytest.approx(1)
