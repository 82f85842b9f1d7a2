"""What the ranks do together, over `torch.distributed`: NCCL between GPUs, gloo between processes on CPUs.

The group belongs to the models it serves. It is not the process's default group, which stays the user's own.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from simsd.errors import ConfigError

_HERE = "127.0.0.1"  # other machines cannot reach it
CONNECT = timedelta(seconds=30)  # all ranks are there when they begin to connect
# A rank that is alive, but does not come, holds the others up for this long. All have the same work at the same time.
PATIENCE = timedelta(minutes=5)


class RanksLostError(Exception):
    """A collective failed: another rank is gone, or did not come."""


class Group:
    """All ranks, of which this process is one. The same calls must be made by all of them, in the same order."""

    def __init__(self, rank: int, size: int, device: torch.device, store: Any) -> None:
        """Connects, which waits for all the others. store: where they find one another, of `host` or `meet`.

        Raises: RanksLostError.
        """
        self.rank = rank
        self.size = size
        self.device = device
        self._sum, self._share, self._gather = dist.AllreduceOptions(), dist.BroadcastOptions(), dist.GatherOptions()
        for options in (self._sum, self._share, self._gather):
            options.timeout = PATIENCE
        self._share.rootRank = self._gather.rootRank = 0
        make = _nccl if device.type == "cuda" else _gloo
        self._backend = _joined(lambda: make(store, rank, size))
        self.sum(torch.zeros(1, device=device))  # NCCL connects now
        self.settle()

    def sum(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x, written over x where that is contiguous."""
        x = x.contiguous()
        self._done(lambda: self._backend.allreduce([x], self._sum))
        return x

    def gather(self, x: Tensor) -> list[Tensor] | None:
        """Every rank's x on rank 0; None on the others."""
        x = x.contiguous()
        all_of_them = [torch.empty_like(x) for _ in range(self.size)] if self.rank == 0 else []
        self._done(lambda: self._backend.gather([all_of_them] if self.rank == 0 else [], [x], self._gather))
        return all_of_them or None

    def share(self, x: Tensor) -> Tensor:
        """Rank 0's x on all ranks, written over theirs."""
        self._done(lambda: self._backend.broadcast([x], self._share))
        return x

    def settle(self) -> None:
        """Waits for what a GPU has been given to do: only then is it known that all ranks took part."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def abort(self) -> None:
        """Ends collectives that wait for a rank which will not come. Any thread may call it."""
        if self.device.type == "cuda":  # gloo notices a closed connection by itself
            self._backend.abort()

    def _done(self, start: Callable[[], Any]) -> None:
        _joined(lambda: start().wait())


def host() -> Any:
    """A store in which ranks find one another, for this process, which is rank 0. It leaves nothing behind.

    Raises: RanksLostError.
    """
    listener = socket.create_server((_HERE, 0))  # PyTorch's own would listen to other machines, too
    port = listener.getsockname()[1]
    return _store(port, is_master=True, master_listen_fd=listener.detach(), wait_for_workers=False)


def meet(port: int) -> Any:
    """Rank 0's store, for the others. Raises: RanksLostError."""
    return _store(port)


def _store(port: int, **more: Any) -> Any:
    kind: Any = dist.TCPStore  # pyright: ignore[reportPrivateImportUsage]
    return _joined(lambda: kind(_HERE, port, timeout=CONNECT, **more))


def _joined(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except RuntimeError as error:  # all that a backend raises
        raise RanksLostError(str(error).splitlines()[0]) from error


def _gloo(store: Any, rank: int, size: int) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = CONNECT
    store.set_timeout(CONNECT)
    options._devices = [gloo.create_device(hostname=_HERE)]
    return gloo(store, rank, size, options)


def _nccl(store: Any, rank: int, size: int) -> Any:
    nccl: Any = dist.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = PATIENCE
    return nccl(store, rank, size, options)


def check_backend(size: int, device: torch.device) -> None:
    """Makes sure that this build of PyTorch connects ranks on devices of this kind. Raises: ConfigError."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    if not dist.is_available() or not dist.is_backend_available(backend):
        raise ConfigError(f"tensor_parallel_size is {size}, but this PyTorch has no {backend}; install one that does")
