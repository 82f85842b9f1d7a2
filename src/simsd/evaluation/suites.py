"""The embedded question suites, and any file of the same shape: one JSON object a line."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from simsd.errors import ConfigError
from simsd.evaluation.lines import parse, read_text, text_of, texts_of

SUITES = ("math", "code", "trivia", "choice", "chat")

MBPP_PROMPT = (
    "You are an expert Python programmer, and here is your task: {task} Your code should pass these tests:\n\n{tests}"
)


@dataclass(frozen=True)
class Question:
    """One question: `skill` names the grader, `answer` is the reference, `tests` are asserts (code only)."""

    skill: str
    question: str
    answer: str
    tests: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.skill not in SUITES:
            raise ConfigError(f"unknown skill {self.skill!r}: use one of {', '.join(SUITES)}")
        if not self.question.strip():
            raise ConfigError("the question is empty")
        if self.skill == "code" and not self.tests:
            raise ConfigError("a code question needs 'tests', a list of assert statements")


def load_suite(name_or_path: str | Path, limit: int | None = None) -> list[Question]:
    """The first `limit` questions of an embedded suite (a name in `SUITES`, as text) or of a JSON Lines file.

    A line is `{"skill", "question", "answer"}`, with `"tests"` for code. Lines of GSM8K (`question`, `answer` with
    `####`) and of MBPP (`text`, `code`, `test_list`) are recognised as they are published. A `Path` is always a file.
    Raises ConfigError naming the file and the line.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is {limit}: it must be at least 1")
    questions = parse(_read(name_or_path), str(name_or_path), question_of, limit)
    if not questions:
        raise ConfigError(f"{name_or_path} holds no question")
    return questions


def messages(question: Question) -> list[dict[str, str]]:
    """The conversation that asks `question`, for `LLM.chat`."""
    return [{"role": "user", "content": question.question}]


def _read(name_or_path: str | Path) -> str:
    if isinstance(name_or_path, str) and name_or_path in SUITES:
        return (resources.files("simsd") / "assets" / "suites" / f"{name_or_path}.jsonl").read_text("utf-8")
    if isinstance(name_or_path, str) and not os.path.lexists(name_or_path):
        raise ConfigError(f"no suite {name_or_path!r}, and no such file: use {', '.join(SUITES)} or a JSONL file")
    return read_text(Path(name_or_path))


def question_of(row: dict[str, Any]) -> Question:
    """The question of a line. Raises ConfigError."""
    if "test_list" in row and "text" in row:
        setup = text_of(row, "test_setup_code") if row.get("test_setup_code") is not None else ""
        tests = texts_of(row, "test_list")
        prompt = MBPP_PROMPT.format(task=text_of(row, "text"), tests="\n".join(tests))
        return Question("code", prompt, text_of(row, "code"), tuple(test for test in (setup, *tests) if test.strip()))
    answer = text_of(row, "answer")
    skill = "math" if "skill" not in row and "####" in answer else text_of(row, "skill")
    return Question(skill, text_of(row, "question"), answer, tuple(texts_of(row, "tests")) if "tests" in row else ())
