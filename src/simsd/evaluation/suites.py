"""The embedded question suites, and any file of the same shape: one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from simsd.errors import ConfigError

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
    """The first `limit` questions of an embedded suite (a name in `SUITES`) or of a JSON Lines file.

    A line is `{"skill", "question", "answer"}`, with `"tests"` for code. Lines of GSM8K (`question`, `answer` with
    `####`) and of MBPP (`text`, `code`, `test_list`) are recognised as they are published.
    Raises ConfigError naming the file and the line.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is {limit}: it must be at least 1")
    questions = []
    for number, line in enumerate(_read(name_or_path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            questions.append(_question(_object(line)))
        except ConfigError as error:
            raise ConfigError(f"{name_or_path}, line {number}: {error}") from error
        if len(questions) == limit:
            break
    if not questions:
        raise ConfigError(f"{name_or_path} holds no question")
    return questions


def messages(question: Question) -> list[dict[str, str]]:
    """The conversation that asks `question`, for `LLM.chat`."""
    return [{"role": "user", "content": question.question}]


def _read(name_or_path: str | Path) -> str:
    if str(name_or_path) in SUITES:
        return (resources.files("simsd") / "assets" / "suites" / f"{name_or_path}.jsonl").read_text("utf-8")
    try:
        return Path(name_or_path).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name_or_path} is not UTF-8 text") from error
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise ConfigError(
            f"no suite {str(name_or_path)!r} ({reason}): use {', '.join(SUITES)} or a JSONL file"
        ) from error


def _object(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ConfigError(f"expected a JSON object, found {type(row).__name__}")
    return row


def _question(row: dict[str, Any]) -> Question:
    if "test_list" in row and "text" in row:
        tests = [row.get("test_setup_code") or "", *_texts(row, "test_list")]
        prompt = MBPP_PROMPT.format(task=_text(row, "text"), tests="\n".join(_texts(row, "test_list")))
        return Question("code", prompt, _text(row, "code"), tuple(test for test in tests if test.strip()))
    answer = _text(row, "answer")
    skill = "math" if "skill" not in row and "####" in answer else _text(row, "skill")
    return Question(skill, _text(row, "question"), answer, tuple(_texts(row, "tests")) if "tests" in row else ())


def _text(row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        raise ConfigError(f"{key!r} is {'missing' if value is None else 'not text'}")
    return value


def _texts(row: dict[str, Any], key: str) -> list[str]:
    values = row[key]
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ConfigError(f"{key!r} is not a list of texts")
    return values
