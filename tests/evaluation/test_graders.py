"""Graders: right and wrong answers of every skill, and every suite's own reference answers."""

from __future__ import annotations

import os
from decimal import Decimal
from itertools import pairwise

import pytest

from simsd.evaluation.graders import choice_answer, grade, math_answer, normalise, program
from simsd.evaluation.suites import SUITES, Question, load_suite

needs_limits = pytest.mark.skipif(os.name != "posix", reason="generated code runs on Linux and macOS only")
ADD = Question("code", "Write a function add.", "def add(a, b):\n    return a + b", ("assert add(1, 2) == 3",))


@needs_limits
@pytest.mark.parametrize("name", SUITES)
def test_reference_answers_are_right(name: str) -> None:
    for question in load_suite(name, 40 if name == "code" else None):
        assert grade(question, question.answer), question.question


@pytest.mark.parametrize("name", ["math", "trivia", "choice", "chat"])
def test_answers_to_other_questions_are_wrong(name: str) -> None:
    questions = load_suite(name)
    for question, other in pairwise(questions):
        same = math_answer(question.answer) == math_answer(other.answer) if name == "math" else False
        if not same and question.answer.split("\n")[-1] != other.answer.split("\n")[-1]:
            assert not grade(question, other.answer), question.question


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 2 + 3 = 5\n#### 5", 5),
        ("#### 1,234", 1234),
        ("#### $70,000.00 in all", 70000),
        ("####-3", -3),
        ("#### -$3", -3),
        ("#### .5", Decimal("0.5")),
        ("#### 5.", 5),
        ("#### 5\nQuestion: and then?\n#### 7", 5),
        ("That makes 12 apples and 4 pears.", 4),
        ("#### five", None),
        ("9 apples\n#### none", None),
        ("no number at all", None),
        ("", None),
    ],
)
def test_math_answer(text: str, number: object) -> None:
    assert math_answer(text) == number


def test_math_without_a_number_is_wrong() -> None:
    assert not grade(Question("math", "q", "#### 1"), "I do not know")
    assert not grade(Question("math", "q", "#### 10"), "#### 1")


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("It is Euro.\nThe answer is B.", "B"),
        ("the answer is (C)", "C"),
        ("The answer is: D", "D"),
        ("B", "B"),
        (" (A) Asia", "A"),
        ("C. Chile", "C"),
        ("The answer is A. The answer is B.", "A"),
        ("Australia", None),
        ("The answer is Australia.", None),
        ("", None),
    ],
)
def test_choice_answer(text: str, letter: str | None) -> None:
    assert choice_answer(text) == letter


def test_trivia_ignores_case_punctuation_articles_and_spaces() -> None:
    assert normalise("  The  United-States!") == "united states"
    question = Question("trivia", "q", "Guatemala City")
    assert grade(question, "guatemala city.")
    assert not grade(question, "Guatemala")
    assert not grade(question, "")


def test_chat_ignores_spaces_only() -> None:
    question = Question("chat", "q", "1, 2,\n3.")
    assert grade(question, "1, 2, 3.")
    assert not grade(question, "1, 2, 4.")


@pytest.mark.parametrize(
    "text",
    [
        "def add(a, b):\n    return a + b",
        "Sure!\n```python\ndef add(a, b):\n    return a + b\n```\nIt adds.",
        "```\ndef add(a, b):\n    return a + b\n```",
        "```py\ndef add(a, b):\n    return a + b",
        "Use this:\n```sh\nls\n```\n```python\ndef add(a, b):\n    return a + b\n```",
        "Here it is:\nimport operator\ndef add(a, b):\n    return operator.add(a, b)\nHope that helps!",
        "def add(a, b):\n    return a + b\n\ndef half(",
    ],
)
@needs_limits
def test_code_is_found_in_words_and_fences(text: str) -> None:
    assert grade(ADD, text), program(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I cannot.",
        "def add(a, b):\n    return a - b",
        "def plus(a, b):\n    return a + b",
        "def add(a, b)",
        "\0",
        "(" * 9000,
    ],
)
@needs_limits
def test_wrong_code_is_wrong(text: str) -> None:
    assert not grade(ADD, text)
