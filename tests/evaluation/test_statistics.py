from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from simsd.evaluation.statistics import Spread, mcnemar, wilson


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_spread_is_median_and_quartiles(values: list[float]) -> None:
    found = Spread.of(values)
    expected = np.percentile(values, [25, 50, 75])
    assert [found.low, found.median, found.high] == pytest.approx(expected, abs=1e-6)


def test_no_value_has_no_median() -> None:
    with pytest.raises(ValueError, match="no values"):
        Spread.of([])


@given(st.integers(1, 500).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count))))
def test_wilson_is_that_of_scipy(case: tuple[int, int]) -> None:
    right, count = case
    expected = binomtest(right, count).proportion_ci(0.95, method="wilson")
    assert wilson(right / count, count) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_nothing_seen_says_nothing_of_a_share() -> None:
    assert wilson(0.0, 0) == (0.0, 1.0)


@given(st.integers(0, 200), st.integers(0, 200))
def test_mcnemar_is_the_binomial_test_of_the_pairs_that_differ(lost: int, gained: int) -> None:
    expected = binomtest(lost, lost + gained).pvalue if lost + gained else 1.0
    assert mcnemar(lost, gained) == pytest.approx(expected, abs=1e-9)
