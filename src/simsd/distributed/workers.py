"""The ranks as rank 0 sees them: it calls, and all of them do the same."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from itertools import count
from typing import Any, NoReturn

import torch

from simsd.distributed.call import Call
from simsd.distributed.group import CONNECT, PATIENCE, Group, RanksLostError, check_backend, host
from simsd.distributed.process import Process
from simsd.distributed.rank import Rank
from simsd.distributed.watch import Watch
from simsd.distributed.worker import Start
from simsd.errors import WorkerError
from simsd.models.loader import Checkpoint

_CONNECT = (CONNECT + PATIENCE).total_seconds()  # and then the first sum
_NOTICE = 5.0  # seconds in which a lost connection is traced back to a process that ended


class Workers:
    """Rank 0 and the processes of the others.

    All that rank 0 does with them is done in one thread: calls from several threads come one after another, and one
    that Ctrl-C interrupts is finished all the same, so that the ranks stay in step.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        """Starts the processes, and waits until all are connected. CPU threads are divided among the ranks.

        devices: each rank's. Raises: ConfigError where PyTorch cannot connect them; WorkerError.
        """
        self.size = len(devices)
        self.device = devices[0]
        check_backend(self.size, self.device)
        self.numbers = count()  # of models and caches
        self._dropped: deque[int] = deque()
        self._watch = Watch(range(1, self.size))
        self._processes = self._watch.processes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="simsd-rank-0")
        self._close = weakref.finalize(self, _end_processes, os.getpid(), self._watch)
        try:
            self._connect(devices)
        except BaseException:
            self.close()
            raise

    def _connect(self, devices: Sequence[torch.device]) -> None:
        threads = torch.get_num_threads()
        share = max(1, threads // self.size)
        try:
            store = host()
            for process in self._processes:
                start = Start(process.rank, self.size, devices[process.rank], store.port, share)
                self._tell(process, start)
            self._watch.await_done("starting")
            joined = self._thread.submit(_join, self.size, self.device, store, share)
            self._rank = joined.result(_CONNECT)
        except RanksLostError as error:
            self._lost(error, "while connecting")
        except LateError:
            self._watch.give_up(self._watch.silent(f"while connecting for {_CONNECT:g} s"))
        torch.set_num_threads(threads)  # the share is that of rank 0's thread alone
        group = self._rank.group
        self._watch.when_failed(lambda failure: group.abort())

    def load(self, checkpoint: Checkpoint) -> int:
        """Loads a checkpoint, every rank its part; returns the model's number. Raises: ModelError, WorkerError."""
        model = next(self.numbers)
        self._in_turn(self._tell_all, Call.of("load", [model, checkpoint]))
        self._rank.load(model, checkpoint)  # here, where Ctrl-C can end it: the ranks need not be in step
        self._watch.await_done("loading")
        return model

    def call(self, name: str, *arguments: Any) -> Any:
        """Runs `Rank.name(*arguments)` on all ranks, and returns rank 0's result.

        Raises: WorkerError where a rank is lost, now or earlier; what rank 0's own part raises. Both end the workers.
        """
        return self._in_turn(self._call, name, arguments)

    def drop_cache(self, cache: int) -> None:
        """Lets go of a cache with the next call; safe at any moment, such as while garbage is collected."""
        self._dropped.append(cache)

    @property
    def alive(self) -> bool:
        """Whether calls can be made: no rank is lost, and the workers are not closed."""
        return self._close.alive and self._watch.failure is None

    def when_lost(self, act: Callable[[WorkerError], None]) -> None:
        """Calls `act`, from another thread, as soon as a rank is lost; not when the workers are closed."""
        self._watch.when_failed(act)

    @property
    def rank(self) -> Rank:
        """Rank 0's own part."""
        return self._rank

    def close(self) -> None:
        """Ends the workers, after the call that is under way."""
        self._thread.shutdown()
        self._close()

    def _in_turn(self, work: Callable[..., Any], *arguments: Any) -> Any:
        try:
            result = self._thread.submit(work, *arguments)
        except RuntimeError as error:  # the thread takes no more
            raise WorkerError("this LLM is closed; make a new one") from error
        return result.result()

    # ------------------------------------------------------------------ rank 0's thread
    def _call(self, name: str, arguments: Sequence[Any]) -> Any:
        self._watch.check()
        while self._dropped:
            self._on_all_ranks("drop_cache", [self._dropped.popleft()])
        return self._on_all_ranks(name, arguments)

    @torch.inference_mode()
    def _on_all_ranks(self, name: str, arguments: Sequence[Any]) -> Any:
        call = Call.of(name, arguments)
        self._tell_all(call)
        try:
            result = self._rank.run(call, tuple(arguments))
        except Exception as error:
            if isinstance(error, RanksLostError) or self._watch.failure is not None:
                self._lost(error)
            # the others are in the middle of a call that rank 0 has left
            self._watch.fail(WorkerError(f"rank 0 failed earlier with {type(error).__name__}; make a new LLM"))
            self._watch.close(kill=True)
            raise
        self._watch.check()  # a GPU's collective that was ended for a lost rank returns like any other
        return result

    def _tell_all(self, message: Any) -> None:
        for process in self._processes:
            self._tell(process, message)

    def _tell(self, process: Process, message: Any) -> None:
        try:
            process.send(message)
        except OSError as error:
            self._lost(error)

    def _lost(self, error: Exception, when: str = "in a call") -> NoReturn:
        """Ends the workers and says why a collective or a pipe failed. Raises: WorkerError."""
        self._watch.await_failure(_NOTICE)
        unknown = self._watch.silent(f"{when}: {error}")
        unknown.__cause__ = error
        self._watch.give_up(unknown)


def _join(size: int, device: torch.device, store: Any, threads: int) -> Rank:
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.get_num_threads()  # a thread's first use of the number sets it to the program's: let that be over
    torch.set_num_threads(threads)
    return Rank(Group(0, size, device, store))


def _end_processes(owner: int, watch: Watch) -> None:
    """Ends the processes; a copy of rank 0 that `fork` made leaves them alone."""
    if os.getpid() == owner:
        watch.close()
        for process in watch.processes:
            process.pipe.close()
