"""CUDA as far as recording needs it, without a device: streams, and the books of PyTorch's allocators.

They are kept as in PyTorch: the end of a recording that was broken off raises before the allocators are told of it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

Pool = tuple[int, int]


class Books:
    """What the process holds. `default`: the stream that a thread is on unless it says otherwise."""

    def __init__(self) -> None:
        self.default = Stream()
        self.thread = threading.local()
        self.pools: dict[Pool, int] = {}  # graphs that use each
        self.open: dict[Pool, Callable[[], Any]] = {}  # from which the device's memory is given; who is asked
        self.pinned: dict[Pool, Callable[[], Any]] = {}  # likewise memory of the host, which nobody can close

    @property
    def current(self) -> Stream:
        return getattr(self.thread, "stream", self.default)

    def allocate(self) -> None:
        """Asks, as for each piece of memory, whether it belongs to a recording."""
        for asked in (*self.open.values(), *self.pinned.values()):
            assert asked() is not None, "an allocator asks a graph that is gone"

    def end(self, device: int, pool: Pool) -> None:
        if pool not in self.open:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        del self.open[pool]

    def release(self, device: int, pool: Pool) -> None:
        self.pools[pool] -= 1
        assert self.pools[pool] >= 0


class Stream:
    """It notes whose work it waits for."""

    def __init__(self, device: Any = None) -> None:
        self.waited: list[Stream] = []
        self.broken: str | None = None  # why the recording on it has been broken off
        self.recording = False

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other)


class Graph:
    books: Books

    def capture_begin(self, pool: Pool, **_: Any) -> None:
        books, stream = self.books, self.books.current
        books.pools[pool] = books.pools.get(pool, 0) + 1
        for held in (books.open, books.pinned):
            if pool in held:
                raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
            held[pool] = weakref.ref(self)
        self.pool, self.stream, stream.recording, stream.broken = pool, stream, True, None

    def capture_end(self) -> None:
        stream = self.books.current
        if not stream.recording:
            raise RuntimeError("CUDA error: operation not permitted when stream is not capturing")
        assert stream is self.stream
        stream.recording = False
        if self.stream.broken is not None:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        self.books.end(0, self.pool)
        del self.books.pinned[self.pool]
        weakref.finalize(self, self.books.release, 0, self.pool)

    def replay(self) -> None:
        return None


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Books:
    books, numbers = Books(), itertools.count(1)

    class On:
        def __init__(self, stream: Stream) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            self.before = books.current
            books.thread.stream = self.stream

        def __exit__(self, *_: object) -> None:
            books.thread.stream = self.before

    fakes: dict[str, Any] = {
        "synchronize": books.allocate,
        "empty_cache": books.allocate,
        "stream": On,
        "Stream": Stream,
        "CUDAGraph": type("CUDAGraph", (Graph,), {"books": books}),
        "graph_pool_handle": lambda: (0, next(numbers)),
        "current_stream": lambda device=None: books.current,
        "current_device": lambda: 0,
        "device": lambda device: contextlib.nullcontext(),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    for name, fake in {"endAllocateToPool": books.end, "releasePool": books.release}.items():
        monkeypatch.setattr(torch._C, f"_cuda_{name}", fake, raising=False)
    return books


def read_on_the_host(books: Books) -> None:
    """What waits for the device: it breaks off a recording on this stream."""
    if books.current.recording:
        books.current.broken = "operation not permitted when stream is capturing"
        raise RuntimeError(f"CUDA error: {books.current.broken}\nand advice")
