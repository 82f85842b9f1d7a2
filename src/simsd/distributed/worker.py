"""The process of a rank other than 0: it does what rank 0 does, until it is told to stop or rank 0 is gone."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from simsd.distributed.call import Call
from simsd.distributed.group import Group, RanksLostError
from simsd.distributed.rank import Rank

LOST = 3  # exit code of a rank that ends because another one did


@dataclass(frozen=True)
class Start:
    """The first message to a worker."""

    rank: int
    size: int
    device: torch.device
    store: Path
    threads: int


@dataclass(frozen=True)
class Stop:
    """The last message to a worker."""


@dataclass(frozen=True)
class Done:
    """A worker's word that it is ready to connect, or has loaded a model."""


@dataclass(frozen=True)
class Failed:
    """A worker's last words."""

    error: str
    trace: str


def main() -> None:
    """Runs as a process of its own; the argument is the number of its end of the pipe."""
    pipe = Connection(int(sys.argv[1]))
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    os._exit(_serve(pipe))  # at once: a group that has lost a rank may not come apart in good order


def _serve(pipe: Connection) -> int:
    try:
        start = pipe.recv()
        if start.device.type == "cuda":
            torch.cuda.set_device(start.device)
        torch.set_num_threads(start.threads)
        pipe.send(Done())
        rank = Rank(Group(start.rank, start.size, start.device, start.store))
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


def _end_with(parent: int) -> None:
    """Ends this process with rank 0's, whatever it waits for: a collective on a GPU would wait for ever."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(LOST)
