"""docs/results.md is what the committed figures say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import results_page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results.md"


def test_the_page_is_made_from_the_committed_figures() -> None:
    assert PAGE.read_text("utf-8") == results_page.render()


def test_every_plot_of_the_page_is_there() -> None:
    named = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", PAGE.read_text("utf-8"))
    assert len(named) >= 7
    assert all((PAGE.parent / name).is_file() for name in named)


def test_a_part_that_is_not_made_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    template = tmp_path / "page.in"
    template.write_text("{{ nothing }}", "utf-8")
    monkeypatch.setattr(results_page, "TEMPLATE", template)
    with pytest.raises(KeyError, match="nothing"):
        results_page.render()


@pytest.mark.parametrize(("p", "shown"), [(0.0002, "< 0.001"), (0.0306, "0.031"), (1.0, "1.000"), (None, "-")])
def test_small_p_values_are_bounds(p: float | None, shown: str) -> None:
    assert results_page.p_value(p) == shown
