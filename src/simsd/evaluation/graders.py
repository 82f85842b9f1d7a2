"""Is the answer right? One rule a skill, as strict as the public benchmark that the skill mirrors."""

from __future__ import annotations

import ast
import re
import string
from decimal import Decimal

from simsd.evaluation.sandbox import Limits, run_tests
from simsd.evaluation.suites import Question

NUMBER = r"-?\$?-?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)"
MAX_PROGRAM = 20_000  # characters; longer texts are no answer to a question of these suites


def grade(question: Question, text: str, limits: Limits | None = None) -> bool:
    """True if `text` answers `question`.

    math: the number after the first `####`, or, in a text without `####`, the last number;
    trivia: equal after TriviaQA's normalisation (case, punctuation, articles, spaces);
    choice: the letter of the first `answer is X`, or the letter that the text begins with;
    chat: equal after collapsing spaces;
    code: the program in the text passes every assert, in a guarded process with `limits`.
    """
    if question.skill == "math":
        return _same(math_answer(text), math_answer(question.answer))
    if question.skill == "choice":
        return _same(choice_answer(text), choice_answer(question.answer))
    if question.skill == "trivia":
        return _same(normalise(text), normalise(question.answer))
    if question.skill == "chat":
        return text.split() == question.answer.split()
    return run_tests(program(text), question.tests, limits).passed


def _same(found: object, reference: object) -> bool:
    return found is not None and found == reference


def math_answer(text: str) -> Decimal | None:
    """The final number of a worked solution (GSM8K's rule): `#### 1,234.50` and `$1234.5` are the same."""
    before, marker, after = text.partition("####")
    found = [after.strip()] if marker else re.findall(NUMBER, before)
    match = re.match(NUMBER, found[-1]) if found else None
    return Decimal(match.group().replace(",", "").replace("$", "")) if match and match.group().count("-") < 2 else None


def choice_answer(text: str) -> str | None:
    """The letter that the text settles on (MMLU's rule)."""
    said = re.search(r"\banswer is:?\s*\(?([A-J])\b", text)
    if said is None:
        said = re.match(r"\s*\(?([A-J])(?:[).:\s]|$)", text)
    return said.group(1) if said else None


def normalise(text: str) -> str:
    """TriviaQA's normalisation: lower case, no punctuation, no articles, single spaces."""
    bare = "".join(" " if char in string.punctuation else char for char in text.lower())
    return " ".join(re.sub(r"\b(?:a|an|the)\b", " ", bare).split())


def program(text: str) -> str:
    """The Python program in `text`: the fenced block, the whole text, or its longest part that parses.

    A model often wraps its function in words; the part begins at the first line that can only be code.
    """
    text = text[:MAX_PROGRAM]
    fenced = re.findall(r"```[ \t]*(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", text, re.DOTALL | re.IGNORECASE)
    body = next((block for block in fenced if "def " in block), text)
    if _parses(body):
        return body
    lines = body.splitlines()
    starts = (i for i, line in enumerate(lines) if re.match(r"(?:def|class|import|from|async def|@)\b|@", line))
    first = next(starts, 0)
    for last in range(len(lines), first, -1):
        part = "\n".join(lines[first:last])
        if _parses(part):
            return part
    return body


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
