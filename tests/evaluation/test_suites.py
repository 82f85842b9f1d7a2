"""Suites: what is embedded, what a file may hold, and errors that name the line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simsd.errors import ConfigError
from simsd.evaluation.suites import SUITES, Question, load_suite, messages

SIZES = {"math": 200, "code": 126, "trivia": 136, "choice": 200, "chat": 200}


@pytest.mark.parametrize("name", SUITES)
def test_embedded_suite_is_complete_and_of_one_skill(name: str) -> None:
    questions = load_suite(name)
    assert len(questions) == SIZES[name]
    assert {q.skill for q in questions} == {name}
    assert len({q.question for q in questions}) == len(questions)


def test_limit_takes_the_first_questions() -> None:
    assert load_suite("math", 3) == load_suite("math")[:3]
    assert len(load_suite("math", 10_000)) == SIZES["math"]
    with pytest.raises(ConfigError, match="limit is 0"):
        load_suite("math", 0)


def test_messages_ask_the_question_as_the_user() -> None:
    question = load_suite("trivia", 1)[0]
    assert messages(question) == [{"role": "user", "content": question.question}]


def test_file_with_blank_lines_and_unusual_separators(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    row = {"skill": "chat", "question": "A line\u2028separator inside?", "answer": "yes"}
    file.write_text("\n" + json.dumps(row, ensure_ascii=False) + "\r\n\n", "utf-8")
    assert load_suite(file) == [Question("chat", row["question"], "yes")]


def test_public_formats_are_recognised(tmp_path: Path) -> None:
    file = tmp_path / "mixed.jsonl"
    gsm8k = {"question": "2 + 3?", "answer": "2+3=<<2+3=5>>5\n#### 5"}
    mbpp = {
        "text": "Write {a} function.",
        "code": "def f(): return 1",
        "test_setup_code": "import math",
        "test_list": ["assert f() == 1"],
    }
    file.write_text(json.dumps(gsm8k) + "\n" + json.dumps(mbpp), "utf-8")
    math, code = load_suite(file)
    assert (math.skill, math.question) == ("math", "2 + 3?")
    assert code.skill == "code"
    assert code.tests == ("import math", "assert f() == 1")
    assert "Write {a} function." in code.question
    assert "assert f() == 1" in code.question
    assert "import math" not in code.question


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: expected a JSON object, found list"),
        ('{"skill": "poetry", "question": "q", "answer": "a"}', "line 2: unknown skill 'poetry'"),
        ('{"skill": "math", "answer": "a"}', "line 2: 'question' is missing"),
        ('{"skill": "math", "question": 3, "answer": "a"}', "line 2: 'question' is not text"),
        ('{"question": "q", "answer": "a"}', "line 2: 'skill' is missing"),
        ('{"skill": "math", "question": " ", "answer": "a"}', "line 2: the question is empty"),
        ('{"skill": "code", "question": "q", "answer": "a"}', "line 2: a code question needs 'tests'"),
        ('{"skill": "code", "question": "q", "answer": "a", "tests": "x"}', "line 2: 'tests' is not a list"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"skill": "chat", "question": "q", "answer": "a"}\n' + line + "\n", "utf-8")
    with pytest.raises(ConfigError, match=message):
        load_suite(file)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no suite 'maths'.*math, code, trivia, choice, chat"):
        load_suite("maths")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_suite(tmp_path)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(ConfigError, match="holds no question"):
        load_suite(empty)
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_suite(binary)
