"""The cost of a forward by its query tokens: read between, below and beyond what was measured."""

from __future__ import annotations

import pytest

from simsd.engine.costs import CostTable, measure
from tests.tiny import POSITIONS, runner, tiny_model


def test_costs_are_straight_between_and_beyond_what_was_measured():
    table = CostTable((4, 8, 16), (1.0, 2.0, 6.0))
    assert [table(rows) for rows in (1, 4, 6, 8, 12, 16, 20)] == [1.0, 1.0, 1.5, 2.0, 4.0, 6.0, 8.0]


def test_more_rows_are_never_cheaper_beyond_the_table():
    table = CostTable((4, 8), (2.0, 1.0))  # as a noisy machine may measure it
    assert table(800) == 2.0


def test_one_measured_point_is_a_flat_cost():
    assert CostTable((4,), (3.0,))(400) == 3.0


@pytest.mark.parametrize(("rows", "seconds"), [((), ()), ((4, 4), (1.0, 2.0)), ((8, 4), (1.0, 2.0)), ((4,), ())])
def test_a_table_that_is_none_is_refused(rows, seconds):
    with pytest.raises(ValueError, match="rows must rise"):
        CostTable(rows, seconds)


@pytest.mark.parametrize("block_length", [1, 4, 16, 128, 256])
def test_measuring_covers_growing_rows_inside_the_models_positions(block_length):
    table = measure(runner(tiny_model(), block_length))
    assert table.rows[0] == block_length
    assert all(rows % block_length == 0 and rows <= POSITIONS for rows in table.rows)
    assert all(seconds > 0 for seconds in table.seconds)
