"""A model that is split among ranks, and its cache, as the engine sees them: like any other."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from simsd.distributed.workers import Workers


class ParallelCache:
    """Every rank's part of one cache, by its number; or some sequences of it (`slice`)."""

    def __init__(self, workers: Workers, model: int, sequences: int, capacity: int) -> None:
        self.workers = workers
        self.number = next(workers.numbers)
        weakref.finalize(self, workers.drop_cache, self.number).atexit = False
        workers.call("make_cache", model, self.number, sequences, capacity)

    @property
    def sequences(self) -> int:
        return self.workers.rank.caches[self.number].sequences

    @property
    def capacity(self) -> int:
        return self.workers.rank.caches[self.number].capacity

    def slice(self, start: int, count: int) -> CacheSlice:
        return CacheSlice(self, start, count)

    def grow(self, capacity: int) -> None:
        self._change("grow", capacity)

    def grow_sequences(self, sequences: int) -> None:
        self._change("grow_sequences", sequences)

    def copy(self, src: int, dst: int, count: int) -> None:
        self._change("copy", src, dst, count)

    def swap(self, one: int, other: int, count: int) -> None:
        self._change("swap", one, other, count)

    def clear(self, sequence: int, first: int = 0) -> None:
        self._change("clear", sequence, first)

    def _change(self, method: str, *arguments: int) -> None:
        self.workers.call("change_cache", self.number, method, *arguments)


class CacheSlice:
    """`count` sequences of a cache, from `start` on."""

    def __init__(self, cache: ParallelCache, start: int, count: int) -> None:
        self.cache = cache
        self.start = start
        self.count = count


class ParallelModel:
    """`Model` over ranks: each call is made on all of them; the engine, on rank 0 alone, sees the results."""

    def __init__(self, workers: Workers, number: int) -> None:
        self.workers = workers
        self.number = number

    @property
    def dtype(self) -> torch.dtype:
        return self.workers.rank.models[self.number].dtype

    @property
    def device(self) -> torch.device:
        return self.workers.device

    def make_cache(self, sequences: int, capacity: int) -> ParallelCache:
        return ParallelCache(self.workers, self.number, sequences, capacity)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        bias: Tensor | None,
        cache: ParallelCache | CacheSlice,
        slots: int | Tensor,
        length: int,
    ) -> Tensor:
        """As `Transformer.forward`. Raises: WorkerError."""
        part = cache if isinstance(cache, CacheSlice) else cache.slice(0, cache.sequences)
        seen = None if bias is None else bias == 0
        place = (part.cache.number, part.start, part.count)
        return self.workers.call("forward", self.number, *place, ids, positions, seen, slots, length)

    def head(self, hidden: Tensor) -> Tensor:
        """As `Transformer.head`. Raises: WorkerError."""
        return self.workers.call("head", self.number, hidden)
