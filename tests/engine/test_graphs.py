"""Recorded rounds: what a graph may be found by, what it may not hold, and when it is dropped."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from simsd.core.tensors import kind
from simsd.engine.graphs import AFTER, AGAIN, Graphs, Memory, graphs_for
from tests.capture import RefusedError, StandIn, graphs


@dataclass(frozen=True)
class Given:
    values: Tensor
    factor: int = 1


@dataclass(frozen=True)
class Result:
    values: Tensor
    rows: int


RUNS: list[int] = []


def scaled(given: Given) -> Result:
    RUNS.append(given.factor)
    return Result(given.values * given.factor + torch.arange(len(given.values)), len(given.values))


def call(store: Graphs, values: list[float], factor: int = 1) -> list[float]:
    result = store(scaled, Given(torch.tensor(values), factor))
    assert result.rows == len(values)
    return result.values.tolist()


def test_from_the_third_time_on_no_python_runs_and_the_numbers_are_new():
    store = graphs()
    RUNS.clear()
    found = [call(store, [n, n], 3) for n in range(5)]
    assert found == [[3.0 * n, 3.0 * n + 1] for n in range(5)]
    assert (len(store), store.replays) == (1, 3)
    assert len(RUNS) == 2 + 1  # two calls, and the recording


def test_every_shape_and_every_host_number_has_its_own():
    store = graphs()
    for _ in range(3):
        assert call(store, [1.0]) == [1.0]
        assert call(store, [1.0, 1.0]) == [1.0, 2.0]
        assert call(store, [1.0], 2) == [2.0]
    assert (len(store), store.replays) == (3, 3)


def test_a_result_is_the_callers_own():
    store = graphs()
    kept = [store(scaled, Given(torch.tensor([float(n)]))) for n in range(5)]
    assert [one.values.item() for one in kept] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_view_with_holes_or_of_one_number_goes_in_like_any_other():
    store = graphs()
    wide = torch.arange(8.0).view(4, 2)
    for given in (wide[:, 1], torch.tensor([5.0]).expand(4), torch.ones(4), wide[:, 0]):
        assert torch.equal(store(scaled, Given(given, 2)).values, given * 2 + torch.arange(4))
    assert store.replays == 2


def test_the_ones_used_last_are_kept():
    store = graphs(most=2)
    for size in (1, 2):
        for _ in range(2):
            call(store, [0.0] * size)
    call(store, [7.0])  # used now
    for _ in range(2):
        call(store, [0.0] * 3)  # drops that of two
    assert len(store) == 2
    replays = store.replays
    call(store, [1.0])
    call(store, [1.0] * 3)
    assert store.replays == replays + 2
    call(store, [1.0] * 2)
    assert store.replays == replays + 2


def test_cleared_it_begins_anew_with_another_capture():
    made: list[StandIn] = []

    def capture() -> StandIn:
        made.append(StandIn())
        return made[-1]

    store = Graphs(capture)
    for _ in range(3):
        call(store, [1.0])
    store.clear()
    assert len(store) == 0
    assert [call(store, [n]) for n in range(3)] == [[0.0], [1.0], [2.0]]
    assert (len(store), store.replays, len(made)) == (1, 2, 2)


def reads(given: Given) -> Tensor:
    return given.values * given.values[0].item()


def branches(given: Given) -> Tensor:
    return given.values + 1 if bool(given.values.sum() > 0) else given.values


def counts(given: Given) -> Tensor:
    return given.values[given.values > 0].sum()


def finds(given: Given) -> Tensor:
    return given.values.nonzero().sum()


def puts(given: Given) -> Tensor:
    result = given.values.clone()
    result[given.values > 0] = 1.0
    return result


def makes(given: Given) -> Tensor:
    return given.values + torch.tensor([1.0, 2.0])


def repeats(given: Given) -> Tensor:
    return given.values.repeat_interleave(given.values.long()).sum()


def classes(given: Given) -> Tensor:
    return torch.nn.functional.one_hot(given.values.long()).sum()


@pytest.mark.parametrize("function", [reads, branches, counts, finds, puts, makes, repeats, classes])
def test_what_no_graph_can_hold_runs_as_it_is_and_is_told_once(function, caplog):
    store = graphs()
    with caplog.at_level(logging.WARNING):
        for n in range(5):
            given = Given(torch.tensor([1.0, float(n)]))
            assert torch.equal(store(function, given), function(given))
        store(function, Given(torch.tensor([1.0, 2.0], dtype=torch.float64)))
        store(function, Given(torch.tensor([1.0, 2.0], dtype=torch.float64)))
    assert (len(store), store.replays) == (0, 0)
    (told,) = caplog.messages
    assert told.startswith(f"{function.__qualname__} runs without a CUDA graph: it uses aten.")


@pytest.mark.parametrize("function", [reads, branches, counts, finds, puts, makes, repeats])
def test_the_stand_in_refuses_the_same_by_itself(function):
    with pytest.raises(RefusedError):
        StandIn()(lambda: function(Given(torch.tensor([1.0, 2.0]))))


def test_the_stand_in_refuses_what_goes_by_no_operator():
    with pytest.raises(RefusedError):
        StandIn()(lambda: torch.ones(2).tolist())
    assert torch.ones(2).tolist() == [1.0, 1.0]  # and only while it records


def test_a_capture_that_fails_is_told_and_the_function_runs_on(caplog):
    def failing() -> StandIn:
        def capture(function):
            raise RuntimeError("operation not permitted when stream is capturing\nand more")

        return capture  # type: ignore[return-value]

    store = Graphs(failing)
    with caplog.at_level(logging.WARNING):
        assert [call(store, [n]) for n in range(4)] == [[0.0], [1.0], [2.0], [3.0]]
    why = "operation not permitted when stream is capturing (it is tried again later)"
    assert caplog.messages == [f"scaled runs without a CUDA graph: {why}"]


class Short:
    """It records, but for the first `times` tries."""

    def __init__(self, times: int) -> None:
        self.times, self.tries = times, 0

    def __call__(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        self.tries += 1
        if self.tries <= self.times:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return StandIn()(function)


def test_a_recording_for_which_memory_is_short_is_tried_again_ever_more_rarely():
    short = Short(2)
    store = Graphs(lambda: short)
    tries = []
    for n in range(AFTER * AGAIN**2 + 2):
        assert call(store, [float(n), 0.0]) == [float(n), 1.0]
        tries.append(short.tries)
    assert [n + 1 for n in range(1, len(tries)) if tries[n] > tries[n - 1]] == [AFTER * AGAIN**k for k in range(3)]
    assert (store.recorded, store.replays) == (1, 2)


@pytest.mark.parametrize("where", ["the capture is made", "its memory is had"])
def test_a_round_has_its_result_though_memory_is_short_before_the_recording(where: str, monkeypatch, caplog):
    def fail(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    store = graphs()
    if where == "the capture is made":
        store.make_capture = fail
    else:
        monkeypatch.setattr(Memory, "like", fail)
    assert [call(store, [n]) for n in range(4)] == [[0.0], [1.0], [2.0], [3.0]]
    assert caplog.messages == ["scaled runs without a CUDA graph: CUDA out of memory (it is tried again later)"]


class Slow:
    """It records, and notes who is recording meanwhile."""

    def __init__(self) -> None:
        self.busy, self.most = 0, 0

    def __call__(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        self.busy += 1
        self.most = max(self.most, self.busy)
        time.sleep(0.01)
        self.busy -= 1
        return lambda: None, function()


def test_the_process_records_one_thing_at_a_time_whosever_it_is():
    slow = Slow()
    stores = [Graphs(lambda: slow) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda store: [call(store, [0.0] * n) for n in range(1, 4) for _ in range(2)], stores))
    assert [store.recorded for store in stores] == [3] * 4
    assert slow.most == 1


# ------------------------------------------------------------------ memory
def test_all_graphs_take_and_leave_numbers_in_the_same_memory():
    store = graphs()
    sizes = [1000, 10, 500, 999]
    for size in sizes:
        for _ in range(2):
            call(store, [1.0] * size)
    assert len(store) == 4
    assert store.nbytes == 2 * 4096  # 1,000 numbers, rounded up
    for size in (*sizes, *sizes[::-1]):
        assert call(store, [2.0] * size) == [2.0 + n for n in range(size)]
    assert store.replays == 8


def test_memory_that_is_too_small_is_at_least_doubled_and_goes_with_the_last_graph_in_it():
    store = graphs(most=2)
    for _ in range(2):
        call(store, [0.0] * 1000)
    first = weakref.ref(next(iter(store._graphs.values())).given[0].untyped_storage())
    small = store.nbytes
    for _ in range(3):
        assert call(store, [0.0] * 1100) == [float(n) for n in range(1100)]
    assert store.nbytes == 2 * small
    assert call(store, [3.0] * 1000) == [3.0 + n for n in range(1000)]  # which has the old one
    for size in (5, 6):
        for _ in range(2):
            call(store, [0.0] * size)
    assert len(store) == 2
    assert first() is None
    assert store.nbytes == 2 * small


def test_tensors_of_one_call_overlap_nowhere_whatever_they_are():
    kinds = [
        (torch.float64, (3, 5)),
        (torch.bool, ()),
        (torch.bfloat16, (7,)),
        (torch.long, (0, 4)),
        (torch.bool, (513,)),
    ]
    wanted = [torch.zeros(shape, dtype=dtype) for dtype, shape in kinds]
    wanted.append(torch.ones(4, 6).t())
    made = Memory().like(wanted)
    assert [kind(one) for one in made] == [kind(one) for one in wanted]
    assert all(one.is_contiguous() and one.data_ptr() % 16 == 0 for one in made)
    for number, one in enumerate(made):
        one.fill_(number)
    assert all(bool((one == torch.full_like(one, number)).all()) for number, one in enumerate(made))


# ------------------------------------------------------------------ what is set outside
def multiplied(given: Given) -> Tensor:
    return given.values @ given.values


def test_under_autocast_everything_runs_as_it_is():
    store = graphs()
    given = Given(torch.rand(8, 8))
    plain = [store(multiplied, given) for _ in range(3)]
    with torch.autocast("cpu", torch.bfloat16):
        cast = [store(multiplied, given) for _ in range(3)]
    assert {one.dtype for one in cast} == {torch.bfloat16} and {one.dtype for one in plain} == {torch.float32}
    assert (len(store), store.replays) == (1, 1)


def test_another_precision_of_products_has_graphs_of_its_own():
    store, before = graphs(), torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high", "highest"):
            torch.set_float32_matmul_precision(precision)
            for _ in range(2):
                call(store, [1.0])
    finally:
        torch.set_float32_matmul_precision(before)
    assert (store.recorded, store.replays) == (2, 2)


def test_lengths_are_rounded_up_by_at_most_a_quarter():
    store = Graphs(StandIn)
    assert [store.reach(n) for n in (0, 1, 256, 257, 2048, 2049, 5000)] == [256, 256, 256, 512, 2048, 2560, 5120]
    for n in range(1024, 40_000, 37):
        assert n <= store.reach(n) <= 1.25 * n + 1


def test_there_are_none_on_a_cpu():
    assert graphs_for(torch.device("cpu")) is None
    assert graphs_for(torch.device("cuda:0")) is not None
