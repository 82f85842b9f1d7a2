"""JSON Lines from outside: the number of a line, and what it may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simsd.errors import ConfigError
from simsd.evaluation.lines import parse, read_text, text_of, texts_of


def only(row: dict[str, Any]) -> str:
    return text_of(row, "a")


def test_empty_lines_are_skipped_but_counted() -> None:
    text = '\n{"a": "x\u2028y"}\r\n  \n{"a": 1}\n'
    assert parse(text, "f", only, 1) == ["x\u2028y"]
    with pytest.raises(ConfigError, match="f, line 4: 'a' is not text"):
        parse(text, "f", only)


@pytest.mark.parametrize("values", [None, "x", [1], [["x"]]], ids=str)
def test_texts_are_a_list_of_texts(values: Any) -> None:
    assert texts_of({"a": ["x"]}, "a") == ["x"]
    with pytest.raises(ConfigError, match="'a' is not a list of texts"):
        texts_of({"a": values}, "a")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_mark_at_the_start_is_no_text(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "f").write_text("ä\r\n", encoding, newline="")
    assert read_text(tmp_path / "f") == "ä\r\n"


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_other_encodings_are_told(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "f").write_text("ä", encoding)
    with pytest.raises(ConfigError, match="f is not UTF-8 text"):
        read_text(tmp_path / "f")
