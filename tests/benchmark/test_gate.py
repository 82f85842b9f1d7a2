"""The regression gate says what got worse, and nothing where nothing did."""

from __future__ import annotations

import json

import pytest

from benchmarks.gate import FULL, QUICK, STANDARD, Finding, cells, compare, read
from simsd.benchmark.cell import check

KEY = "exact low_confidence_static B=own T=0"
GOOD = {KEY: Finding(4.0, 1.0)}


def test_the_same_run_passes() -> None:
    assert compare(GOOD, GOOD) == []


@pytest.mark.parametrize(("tokens", "passes"), [(3.61, True), (3.59, False), (9.0, True)])
def test_more_than_a_tenth_of_the_tokens_per_forward_may_not_be_lost(tokens: float, passes: bool) -> None:
    assert (compare({KEY: Finding(tokens, 1.0)}, GOOD) == []) is passes


def test_one_text_that_is_not_ordinary_decodings_fails() -> None:
    (sentence,) = compare({KEY: Finding(4.0, 0.999)}, GOOD)
    assert "99.9%" in sentence


def test_approximate_methods_may_differ_in_text() -> None:
    key = "simsd low_confidence_static B=own T=0"
    other = "exact-draft-order low_confidence_static B=own T=0"
    assert (
        compare({key: Finding(3.0, 0.1), other: Finding(3.0, 0.1)}, {key: Finding(3.0, 0.9), other: Finding(3, 1)})
        == []
    )


def test_a_cell_that_only_one_run_has_fails() -> None:
    assert "--update" in compare({}, GOOD)[0]
    assert "--update" in compare(GOOD, {})[0]


def test_the_committed_standard_is_of_these_cells_all_exact() -> None:
    data = json.loads(STANDARD.read_text("utf-8"))
    for questions in (QUICK, FULL):
        standard = read(data, questions)
        assert set(standard) == {cell.key for cell in cells()}
        assert compare(standard, standard) == []


def test_windows_are_fixed_so_that_no_clock_decides() -> None:
    check(cells(), True, 4)
    assert all(c.method == "none" or dict(c.options)["num_speculative_tokens"] in (4, 8) for c in cells())
