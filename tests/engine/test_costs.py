"""The cost of a forward by its query tokens: read between, below and beyond what was measured."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from simsd.engine import costs
from simsd.engine.costs import CostTable, measure
from simsd.engine.runner import Runner
from tests.tiny import MASK, POSITIONS, runner, tiny_model


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


class Timed:
    """A model of simulated seconds: a hundredth a row at `pace` 1, and `extra` in the forwards named."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pace: float, extra: dict[int, float]) -> None:
        self.model, self.pace, self.extra = tiny_model(2).model, pace, extra
        self.now, self.forwards = 0.0, 0
        monkeypatch.setattr(costs.time, "perf_counter", lambda: self.now)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forward(self, ids: torch.Tensor, *rest: Any) -> Any:
        self.now += self.pace * ids.shape[1] / 100 + self.extra.get(self.forwards, 0.0)
        self.forwards += 1
        return self.model.forward(ids, *rest)


def timed(monkeypatch: pytest.MonkeyPatch, pace: float, **extra: float) -> tuple[Timed, CostTable]:
    model = Timed(monkeypatch, pace, {int(key[1:]): value for key, value in extra.items()})
    return model, measure(Runner(model, MASK, 4, POSITIONS))  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [0.1, 0.6, 5.0])
@pytest.mark.parametrize("pace", [0.01, 1.0])
def test_a_forward_that_starts_something_up_is_not_measured(monkeypatch, pace, start):
    _, table = timed(monkeypatch, pace, _0=start)
    assert len(table.rows) >= 2
    assert table.seconds == pytest.approx([pace * rows / 100 for rows in table.rows])


@pytest.mark.parametrize("held_up", range(1, 12))
def test_nor_is_a_forward_that_was_held_up(monkeypatch, held_up):
    _, table = timed(monkeypatch, 0.01, **{f"_{held_up}": 0.7})
    assert table.seconds == pytest.approx([rows / 10000 for rows in table.rows])


@pytest.mark.parametrize("pace", [30.0, 100.0, 1000.0])
def test_a_forward_of_seconds_is_run_three_times_in_all(monkeypatch, pace):
    model, table = timed(monkeypatch, pace)
    assert model.forwards == 3
    assert table.seconds == pytest.approx([pace * 0.04, pace * 0.08])


def test_a_forward_of_more_rows_bounds_those_of_fewer(monkeypatch):
    slow = {f"_{at}": 0.001 for at in range(1, 7)}  # all of the first number of rows
    _, table = timed(monkeypatch, 0.01, **slow)
    assert list(table.seconds) == sorted(table.seconds)
    assert table(4) == pytest.approx(0.0008)
