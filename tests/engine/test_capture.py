"""Recording on CUDA, over a device that is not there: what it leaves behind where it fails, and what it refuses."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from simsd.engine import capture as capture_module
from simsd.engine.capture import CudaCapture, Watch, stays_on_device
from simsd.engine.graphs import Graphs
from tests.cuda import Books, cuda, read_on_the_host

__all__ = ["cuda"]
HERE = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    capture_module._side.cache_clear()
    monkeypatch.setattr(capture_module, "_BROKEN_OFF", [])


def fine(given: Tensor) -> Tensor:
    return given * 2


class Failing:
    """A function of which the recording fails; `warming`: the run before it."""

    def __init__(self, books: Books, *, short: bool = False, warming: bool = False) -> None:
        self.books, self.short, self.warming = books, short, warming
        self.__qualname__ = "failing"

    def __call__(self, given: Tensor) -> Tensor:
        stream = self.books.current
        if self.short and (stream.recording or (self.warming and stream is not self.books.default)):
            raise torch.OutOfMemoryError("CUDA out of memory")
        read_on_the_host(self.books)
        return given + 1


FAILURES = {
    "it waits for the device": lambda books: Failing(books),
    "memory is short": lambda books: Failing(books, short=True),
    "memory is short before": lambda books: Failing(books, short=True, warming=True),
}


@pytest.mark.parametrize("why", FAILURES)
def test_a_recording_that_fails_leaves_nothing_behind(why: str, cuda: Books, caplog: pytest.LogCaptureFixture):
    store, function = Graphs(partial(CudaCapture, HERE)), FAILURES[why](cuda)
    for _ in range(3):
        assert torch.equal(store(function, torch.ones(2)), torch.full((2,), 2.0))
        assert cuda.current is cuda.default
        assert cuda.open == {}
        assert not cuda.default.recording
    for size in (3, 4, 5):
        for _ in range(3):
            store(fine, torch.ones(size))
    assert (len(store), store.replays) == (3, 3)
    said = "operation not permitted when stream is capturing" if "waits" in why else "CUDA out of memory"
    (told,) = caplog.messages
    assert told.startswith("failing runs without a CUDA graph: ") and said in told
    assert "advice" not in told and "previous error" not in told


@pytest.mark.parametrize("why", FAILURES)
def test_all_pools_are_free_again_when_the_graphs_are_gone(why: str, cuda: Books):
    store, function = Graphs(partial(CudaCapture, HERE)), FAILURES[why](cuda)
    for _ in range(2):
        store(fine, torch.ones(1))
        store(function, torch.ones(2))
        store(fine, torch.ones(3))
    assert store.recorded == 2
    assert sum(cuda.pools.values()) == 2
    store.clear()
    gc.collect()
    assert sum(cuda.pools.values()) == 0
    cuda.allocate()  # asks none that is gone


def test_a_graph_that_was_broken_off_lives_on_for_who_asks_it(cuda: Books):
    capture = CudaCapture(HERE)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            capture(lambda: read_on_the_host(cuda))
        gc.collect()
        cuda.allocate()
    assert len(cuda.pinned) == 2
    assert capture(lambda: 7)[1] == 7


def test_an_interruption_stays_one_and_is_cleared_up_after_as_well(cuda: Books):
    capture = CudaCapture(HERE)

    def interrupted() -> None:
        if cuda.current.recording:
            cuda.current.broken = "it was interrupted"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        capture(interrupted)
    assert cuda.current is cuda.default
    assert cuda.open == {}


def test_what_is_recorded_follows_what_was_queued_and_the_other_way_round(cuda: Books):
    streams: list[Any] = []
    capture = CudaCapture(HERE)
    for _ in range(2):
        capture(lambda: streams.append(cuda.current))
    (side,) = set(streams)  # one for all, as libraries keep memory for each
    assert len(streams) == 4
    assert side is not cuda.default
    assert side.waited == [cuda.default] * 2 and cuda.default.waited == [side] * 2
    other = CudaCapture(HERE)
    other(lambda: streams.append(cuda.current))
    assert streams[-1] is side


# ------------------------------------------------------------------ experts
@pytest.mark.parametrize(
    ("dtype", "capability", "hip", "stays"),
    [
        (torch.bfloat16, (9, 0), None, True),
        (torch.bfloat16, (10, 3), None, True),
        (torch.bfloat16, (8, 9), None, False),
        (torch.bfloat16, (12, 0), None, False),
        (torch.bfloat16, (9, 4), "6.4", False),
        (torch.float32, (9, 0), None, False),
        (torch.float16, (9, 0), None, False),
    ],
)
def test_experts_are_one_kernel_in_bfloat16_on_some_devices(dtype, capability, hip, stays, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    with FakeTensorMode():
        assert stays_on_device(torch.empty(2, 16, dtype=dtype, device="cuda:0")) is stays


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_elsewhere_they_are_refused_though_no_operator_is_seen_that_reads(dtype: torch.dtype):
    rows, weight = torch.rand(4, 16, dtype=dtype), torch.rand(2, 16, 16, dtype=dtype)
    ends = torch.tensor([1, 4], dtype=torch.int32)
    with Watch() as watch:
        torch.nn.functional.grouped_mm(rows, weight.mT, offs=ends)
    assert watch.refused == {"aten._grouped_mm.default"}
