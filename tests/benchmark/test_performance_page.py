"""docs/performance.md is what the committed figures say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import performance_page

ROOT = Path(__file__).parents[2]


def figures() -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "results" / "performance.json").read_text("utf-8"))


def test_the_page_is_made_from_the_committed_figures() -> None:
    assert (ROOT / "docs" / "performance.md").read_text("utf-8") == performance_page.render()


def test_a_part_that_is_not_made_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    template = tmp_path / "page.in"
    template.write_text("{{ nothing }}", "utf-8")
    monkeypatch.setattr(performance_page, "TEMPLATE", template)
    with pytest.raises(KeyError, match="nothing"):
        performance_page.render()


def test_exact_texts_are_ordinary_ones_in_every_figure_that_is_shown() -> None:
    data = figures()
    exact = [row for row in data["methods"] if row["method"] == "exact" and row["dtype"] == "float32"]
    assert len(exact) == 4
    assert all(row["same_text"] == 1.0 for row in exact)
    assert all(row["same_text"] for row in data["batches"])
    assert all(row["same"] == 1.0 for row in data["plain_loop"])


def test_memory_is_what_was_told() -> None:
    assert all(row["cache_bytes"] == row["told_bytes"] for row in figures()["long_texts"])
