"""A worker's process as rank 0 sees it: started, spoken to, watched, ended."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from simsd.distributed.lifeline import LOST
from simsd.distributed.worker import Stop
from simsd.errors import WorkerError

_GRACE = 5.0  # seconds in which a process should have ended by itself
_CODE = """
import sys
sys.path[:] = {path!r}
from simsd.distributed.lifeline import end_with_parent
end_with_parent()
from simsd.distributed.worker import main
main()
"""


class Process:
    """Not one of `multiprocessing`: that would run the user's main module once more in every worker, which a script
    without a guard, a notebook or a program on standard input does not survive.

    It has a session of its own, so that Ctrl-C in a terminal reaches rank 0 alone, which then ends it.
    """

    def __init__(self, rank: int) -> None:
        """On Linux the process ends with the thread that calls this. Raises: WorkerError."""
        self.rank = rank
        path = [entry for entry in sys.path if isinstance(entry, str)]  # Python passes over all others, too
        ours, theirs = socket.socketpair()
        self.pipe = Connection(ours.detach())
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _CODE.format(path=path), str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # that is rank 0's, and may be JSON
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

    @property
    def name(self) -> str:
        return f"rank {self.rank} of the tensor-parallel ranks (process {self.pid})"

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def cause(self, patience: float) -> str | None:
        """Why the process ended by itself, in words; None if it runs on, or ended because another one did."""
        try:
            code = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            return None
        if code == LOST:
            return None
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def start(ranks: Iterable[int]) -> list[Process]:
    """Starts the workers of these ranks, all or none. Raises: WorkerError."""
    started: list[Process] = []
    try:
        for rank in ranks:
            started.append(Process(rank))
    except BaseException:
        end(started, kill=True)
        raise
    return started


def end(processes: Sequence[Process], *, kill: bool = False) -> None:
    """Ends processes, all at the same time; those that have ended already are left alone."""
    for process in processes:
        process.stop(kill=kill)
    for process in processes:
        process.join()
