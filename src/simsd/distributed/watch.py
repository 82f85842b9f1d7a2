"""Notices at once when a worker fails or ends, says why in one sentence, and frees whoever waits for it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection, wait
from typing import NoReturn

from simsd.distributed.group import PATIENCE
from simsd.distributed.process import Process, end, start
from simsd.distributed.worker import Done, Failed, Working
from simsd.errors import WorkerError

_PATIENCE = PATIENCE.total_seconds()  # with a worker that says nothing where it should say that it gets on

_GRACE = 1.0  # seconds for workers that end because of one another: the first cause is the one to tell


class Watch:
    """A thread that starts the workers, and listens to them all. If one is lost, it ends the others.

    failure: why the ranks cannot go on; None as long as they can.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        """Raises: WorkerError."""
        self.failure: WorkerError | None = None
        self.processes: Sequence[Process] = ()
        self._closing = False
        self._failed = threading.Event()
        self._acts: list[Callable[[WorkerError], None]] = []
        self._news = threading.Condition()
        self._done: Counter[Process] = Counter()
        self._heard: dict[Process, float] = {}
        started: Future[Sequence[Process]] = Future()
        # it stays as long as the workers do, which end with the thread that started them
        self._thread = threading.Thread(target=self._run, args=(ranks, started), name="simsd-workers", daemon=True)
        self._thread.start()
        try:
            self.processes = started.result()
        except BaseException:
            self._closing = True
            raise

    def when_failed(self, act: Callable[[WorkerError], None]) -> None:
        """Calls `act(failure)`, in whichever thread, once there is one."""
        with self._news:
            self._acts.append(act)
            failure = self.failure
        if failure is not None:
            act(failure)

    def await_done(self, doing: str) -> None:
        """Waits until every worker has said `Done` once more. Raises: WorkerError, also when one says nothing for too
        long while `doing` this."""
        silent = self._await_done()
        if silent is not None:
            self.give_up(WorkerError(f"{silent.name} said nothing for {_PATIENCE:g} s while {doing}; start again"))
        self.check()

    def _await_done(self) -> Process | None:
        """The worker that is waited for in vain, if there is one."""
        begin = time.monotonic()

        def heard(process: Process) -> float:
            return max(begin, self._heard.get(process, begin))

        with self._news:
            while self.failure is None and (late := [one for one in self.processes if not self._done[one]]):
                first = min(late, key=heard)
                left = heard(first) + _PATIENCE - time.monotonic()
                if left <= 0:
                    return first
                self._news.wait(left)
            self._done.subtract(self.processes)
        return None

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
        with self._news:
            if self.failure is not None:
                return
            self.failure = failure
            self._news.notify_all()
        self._failed.set()
        for act in self._acts:
            act(failure)

    def await_failure(self, seconds: float) -> None:
        """Gives a failure that is about to be noticed the time for it."""
        self._failed.wait(seconds)

    def close(self, *, kill: bool = False) -> None:
        """Ends the workers, which is no failure from now on, and then the thread."""
        self._closing = True
        end(self.processes, kill=kill)
        if threading.current_thread() is not self._thread:  # garbage is collected in any thread
            self._thread.join(_GRACE)

    # ------------------------------------------------------------------ the thread
    def _run(self, ranks: Iterable[int], started: Future[Sequence[Process]]) -> None:
        try:
            processes = start(ranks)
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(processes)
        if self._closing:  # whoever waited for them has been interrupted
            end(processes, kill=True)
            return
        self._listen({process.pipe: process for process in processes})

    def _listen(self, talking: dict[Connection, Process]) -> None:
        while talking:
            for pipe in wait(list(talking)):
                assert isinstance(pipe, Connection)
                message, process = _message(pipe), talking[pipe]
                if isinstance(message, Done | Working):
                    self._note(process, message)
                elif self._closing:
                    del talking[pipe]
                else:
                    self.fail(self._cause(process, message))
                    end(self.processes, kill=True)
                    return

    def _note(self, process: Process, message: Done | Working) -> None:
        with self._news:
            self._heard[process] = time.monotonic()
            if isinstance(message, Done):
                self._done[process] += 1
                self._news.notify_all()

    def _cause(self, process: Process, message: Failed | None) -> WorkerError:
        """The first cause: of the process that was heard first, else of another that it ended with."""
        found, until = _told(process, message, _GRACE), time.monotonic() + _GRACE
        others = [other for other in self.processes if other is not process]
        while found is None and time.monotonic() < until and others:
            for other in others:
                told = _message(other.pipe) if other.pipe.poll() else None
                found = found or _told(other, told if isinstance(told, Failed) else None, 0.05)
        return found or self.silent(f"{process.name} lost it")

    def silent(self, sign: str) -> WorkerError:
        """For the workers that run on where others ended: they were waited for in vain. sign: how that was noticed."""
        names = " and ".join(one.name for one in self.processes if one.runs)
        who = f"{names} did not answer" if names else "the tensor-parallel ranks lost one another"
        return WorkerError(f"{who} ({sign}); start again")


def _message(pipe: Connection) -> Done | Working | Failed | None:
    """What a worker says; None if it says nothing more."""
    try:
        return pipe.recv()
    except (EOFError, OSError):
        return None


def _told(process: Process, message: Failed | None, patience: float) -> WorkerError | None:
    """What became of a worker, unless it runs on or ended only because another one did."""
    if message is not None:
        error = WorkerError(f"{process.name} failed with {message.error.rstrip('.')}; start again once that is mended")
        error.__cause__ = RuntimeError(f"in the worker:\n{message.trace}")
        return error
    cause = process.cause(patience)
    if cause is None:
        return None
    return WorkerError(f"{process.name} {cause}; start again, with a smaller model or shorter text if memory ran out")
