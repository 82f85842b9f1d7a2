"""What the task files name: where their questions come from, and how answers are graded (by simsd's graders)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets

from simsd.errors import ConfigError
from simsd.evaluation.graders import grade
from simsd.evaluation.lines import parse, read_text, text_of, texts_of
from simsd.evaluation.suites import MBPP_PROMPT, Question

# The splits of the MBPP paper, by task id: three examples for the prompt, 500 questions.
MBPP_EXAMPLES, MBPP_TEST = range(2, 5), range(11, 511)

Row = Mapping[str, Any]


def gsm8k(gsm8k: str | None = None, **_: Any) -> Any:
    """Split `test`: the JSON Lines file `gsm8k` (the harness's `--metadata`), else the hub's data set."""
    if gsm8k is None:
        return datasets.load_dataset("openai/gsm8k", "main")
    return {"test": _file("gsm8k", gsm8k, "question", "answer")}


def mbpp(mbpp: str | None = None, **_: Any) -> Any:
    """Splits `test` and `prompt` of the JSON Lines file `mbpp` (the harness's `--metadata`), else of the hub's set.

    A file with other task ids than MBPP's is a test split as a whole.
    """
    if mbpp is None:
        rows = datasets.concatenate_datasets(list(datasets.load_dataset("google-research-datasets/mbpp").values()))
    else:
        rows = _file("mbpp", mbpp, "text", "code", "test_list")
    test = _with_ids(rows, MBPP_TEST)
    return {"test": test if len(test) else rows, "prompt": _with_ids(rows, MBPP_EXAMPLES)}


def _file(name: str, path: str, *columns: str) -> Any:
    """Its lines, each with the texts (or the list of texts) that a question has. Raises ConfigError naming a line."""

    def check(row: dict[str, Any]) -> None:
        for column in columns:
            (texts_of if column == "test_list" else text_of)(row, column)

    try:
        if not parse(read_text(Path(path)), path, check):
            raise ConfigError(f"{path} has no questions")
    except ConfigError as error:
        published = f"--data {name} takes {name.upper()} as published, a JSON object a line"
        raise ConfigError(f"task simsd_{name} cannot be loaded: {error}; {published}") from error
    return datasets.load_dataset("json", data_files=path, split="train")


def _with_ids(rows: Any, ids: range) -> Any:
    return rows.filter(lambda row: row.get("task_id") in ids)


def mbpp_prompt(row: Row) -> str:
    """The question as the MBPP paper asks it."""
    tests = "\n".join(row["test_list"])
    return f"{MBPP_PROMPT.format(task=row['text'], tests=tests)}\n[BEGIN]\n"


def grade_gsm8k(row: Row, results: Sequence[str]) -> dict[str, float]:
    return {"exact_match": float(grade(Question("math", row["question"], row["answer"]), results[0]))}


def grade_mbpp(row: Row, results: Sequence[str]) -> dict[str, float]:
    """Runs the program against its asserts in a process of its own (`simsd.evaluation.sandbox`)."""
    tests = [row.get("test_setup_code") or "", *row["test_list"]]
    question = Question("code", row["text"], row["code"], tuple(test for test in tests if test.strip()))
    return {"pass_at_1": float(grade(question, results[0]))}
