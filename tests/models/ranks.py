"""Ranks as threads of one process: what a split model computes, without processes and their start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from simsd.models.shard import Shard


class Team:
    """Threads that meet at every collective."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=30)
        self.tensors: dict[int, Tensor] = {}

    def run(self, work: Callable[[Shard], Any]) -> list[Any]:
        """`work` of every rank at once, and their results."""

        def one(rank: int) -> Any:
            with torch.inference_mode():
                return work(Shard(rank, self.size, Member(self, rank)))

        with ThreadPoolExecutor(self.size) as threads:
            return list(threads.map(one, range(self.size)))


class Member:
    """One thread's collectives."""

    def __init__(self, team: Team, rank: int) -> None:
        self.team = team
        self.rank = rank

    def all(self, x: Tensor) -> list[Tensor]:
        self.team.tensors[self.rank] = x
        self.team.barrier.wait()
        found = [self.team.tensors[rank].clone() for rank in range(self.team.size)]
        self.team.barrier.wait()
        return found

    def sum(self, x: Tensor) -> Tensor:
        return torch.stack(self.all(x)).sum(0)

    def gather(self, x: Tensor) -> list[Tensor] | None:
        found = self.all(x)
        return found if self.rank == 0 else None
