"""A worker's process as rank 0 sees it: started, spoken to, watched, ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from simsd.distributed.worker import LOST, Stop
from simsd.errors import WorkerError

_GRACE = 5.0  # seconds in which a process should have ended by itself


class Process:
    """Not one of `multiprocessing`: that would run the user's main module once more in every worker, which a script
    without a guard, a notebook or a program on standard input does not survive.

    It has a session of its own, so that Ctrl-C in a terminal reaches rank 0 alone, which then ends it.
    """

    def __init__(self, rank: int) -> None:
        """Raises: WorkerError."""
        self.rank = rank
        ours, theirs = socket.socketpair()
        self.pipe = Connection(ours.detach())
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", "from simsd.distributed.worker import main; main()", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # that is rank 0's, and may be JSON
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"},
                    start_new_session=True,
                )
            except OSError as error:
                raise WorkerError(f"rank {rank} cannot be started ({error.strerror}); free some memory") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Any) -> None:
        """Raises: OSError where the process is gone."""
        self.pipe.send(message)

    def stop(self, *, kill: bool = False) -> None:
        """Asks the process to end; without `kill` it may finish what it does."""
        if kill:
            self._process.kill()
        with suppress(OSError):
            self.pipe.send(Stop())

    def join(self) -> None:
        """Waits until the process has ended; one that does not is killed."""
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def cause(self, patience: float) -> str | None:
        """Why the process ended by itself, in words; None if it runs on, or ended because another one did."""
        try:
            code = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            return None
        if code == LOST:
            return None
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def end(processes: Sequence[Process], *, kill: bool = False) -> None:
    """Ends processes, all at the same time; those that have ended already are left alone."""
    for process in processes:
        process.stop(kill=kill)
    for process in processes:
        process.join()
