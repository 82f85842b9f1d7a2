"""The process of a rank other than 0: it does what rank 0 does, until it is told to stop or rank 0 is gone."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from simsd.distributed.call import Call
from simsd.distributed.group import Group, RanksLostError, meet
from simsd.distributed.lifeline import LOST
from simsd.distributed.rank import Rank

_OFTEN = 1.0  # seconds between two words of a worker that it gets on


@dataclass(frozen=True)
class Start:
    """The first message to a worker. port: where rank 0 keeps the store in which the ranks find one another."""

    rank: int
    size: int
    device: torch.device
    port: int
    threads: int


@dataclass(frozen=True)
class Stop:
    """The last message to a worker."""


@dataclass(frozen=True)
class Done:
    """A worker's word that it is ready to connect, or has loaded a model."""


@dataclass(frozen=True)
class Working:
    """A worker's word that it has read one more weight."""


@dataclass(frozen=True)
class Failed:
    """A worker's last words."""

    error: str
    trace: str


def main() -> None:
    """Runs as a process of its own; the argument is the number of its end of the pipe."""
    pipe = Connection(int(sys.argv[1]))
    os._exit(_serve(pipe))  # at once: a group that has lost a rank may not come apart in good order


def _serve(pipe: Connection) -> int:
    try:
        start = pipe.recv()
        if start.device.type == "cuda":
            torch.cuda.set_device(start.device)
        torch.set_num_threads(start.threads)
        pipe.send(Done())
        group = Group(start.rank, start.size, start.device, meet(start.port))
        rank = Rank(group, _now_and_then(lambda: pipe.send(Working())))
        with torch.inference_mode():
            while True:
                call: Call | Stop = pipe.recv()
                if isinstance(call, Stop):
                    return 0
                rank.run(call)
                if call.name == "load":
                    pipe.send(Done())
    except (EOFError, ConnectionError, RanksLostError):
        return LOST
    except Exception as error:
        try:
            pipe.send(Failed(f"{type(error).__name__}: {error}", traceback.format_exc()))
        except OSError:
            return LOST
        return 1


def _now_and_then(act: Callable[[], None]) -> Callable[[], None]:
    """`act`, not more than once in a while."""
    last = time.monotonic()

    def often() -> None:
        nonlocal last
        if time.monotonic() - last >= _OFTEN:
            act()
            last = time.monotonic()

    return often
