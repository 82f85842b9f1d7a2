"""Notices at once when a worker fails or ends, says why in one sentence, and frees whoever waits for it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import NoReturn

from simsd.distributed.process import Process, end
from simsd.distributed.worker import Done, Failed
from simsd.errors import WorkerError

_GRACE = 1.0  # seconds for workers that end because of one another: the first cause is the one to tell


class Watch:
    """A thread that listens to all workers. If one is lost, it ends the others.

    failure: why the ranks cannot go on; None as long as they can. on_failure: called once there is one.
    """

    def __init__(self, processes: Sequence[Process]) -> None:
        self.failure: WorkerError | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self._processes = {process.pipe: process for process in processes}
        self._closing = False
        self._failed = threading.Event()
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._listen, name="simsd-workers", daemon=True)
        self._thread.start()

    def await_done(self) -> None:
        """Waits until every worker has said `Done` once more. Raises: WorkerError."""
        for _ in self._processes:
            self._done.get()
            self.check()

    def check(self) -> None:
        """Raises: WorkerError, once the ranks cannot go on."""
        if self.failure is not None:
            self.give_up(self.failure)

    def give_up(self, failure: WorkerError) -> NoReturn:
        """Ends the workers, and raises this failure or the one that came first."""
        self.fail(failure)
        self.close(kill=True)
        first = self.failure or failure
        raise WorkerError(str(first)) from first.__cause__

    def fail(self, failure: WorkerError) -> None:
        """The ranks cannot go on; the first reason is kept."""
        if self.failure is None:
            self.failure = failure
            self._failed.set()
            for _ in self._processes:
                self._done.put(None)

    def await_failure(self, seconds: float) -> None:
        """Gives a failure that is about to be noticed the time for it."""
        self._failed.wait(seconds)

    def close(self, *, kill: bool = False) -> None:
        """Ends the workers, which is no failure from now on, and then the thread."""
        self._closing = True
        end(list(self._processes.values()), kill=kill)
        if threading.current_thread() is not self._thread:  # garbage is collected in any thread
            self._thread.join(_GRACE)

    # ------------------------------------------------------------------ the thread
    def _listen(self) -> None:
        pipes = list(self._processes)
        while True:
            for pipe in wait(pipes):
                assert isinstance(pipe, Connection)
                message = _message(pipe)
                if self._closing:
                    return
                if isinstance(message, Done):
                    self._done.put(None)
                    continue
                self.fail(self._cause(self._processes[pipe], message))
                self.on_failure()
                end(list(self._processes.values()), kill=True)
                return

    def _cause(self, process: Process, message: Failed | None) -> WorkerError:
        """The first cause: of the process that was heard first, else of another that it ended with."""
        found, until = _told(process, message, _GRACE), time.monotonic() + _GRACE
        others = [other for other in self._processes.values() if other is not process]
        while found is None and time.monotonic() < until and others:
            for other in others:
                told = _message(other.pipe) if other.pipe.poll() else None
                found = found or _told(other, told if isinstance(told, Failed) else None, 0.05)
        return found or WorkerError(f"rank {process.rank} of the tensor-parallel ranks was lost; start again")


def _message(pipe: Connection) -> Done | Failed | None:
    """What a worker says; None if it says nothing more."""
    try:
        return pipe.recv()
    except (EOFError, OSError):
        return None


def _told(process: Process, message: Failed | None, patience: float) -> WorkerError | None:
    """What became of a worker, unless it runs on or ended only because another one did."""
    who = f"rank {process.rank} of the tensor-parallel ranks (process {process.pid})"
    if message is not None:
        error = WorkerError(f"{who} failed with {message.error.rstrip('.')}; start again once that is mended")
        error.__cause__ = RuntimeError(f"in the worker:\n{message.trace}")
        return error
    cause = process.cause(patience)
    if cause is None:
        return None
    return WorkerError(f"{who} {cause}; start again, with a smaller model or shorter text if memory ran out")
