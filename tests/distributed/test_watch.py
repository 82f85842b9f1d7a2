"""Who is waited for, and for how long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

from simsd import WorkerError
from simsd.distributed.watch import Watch
from simsd.distributed.worker import Done, Working


@dataclass(eq=False)
class Worker:
    """What a `Process` is to a watch, without a process. theirs: the worker's end of the pipe."""

    name: str
    pipe: Connection
    theirs: Connection
    closing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def runs(self) -> bool:
        return not self.theirs.closed

    def stop(self, *, kill: bool) -> None:
        with self.closing:  # the watch may stop it in its thread while the test ends
            self.theirs.close()

    def join(self) -> None:
        pass

    def cause(self, patience: float) -> None:
        """It ended because another one did, or runs on."""


@pytest.fixture
def workers() -> list[Worker]:
    return [Worker(f"rank {rank}", *Pipe()) for rank in (1, 2, 3)]


@pytest.fixture
def watch(workers: list[Worker], monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    monkeypatch.setattr("simsd.distributed.watch._PATIENCE", 0.2)
    monkeypatch.setattr("simsd.distributed.watch._GRACE", 0.1)
    monkeypatch.setattr("simsd.distributed.watch.start", lambda ranks: workers)
    watch = Watch([1, 2, 3])
    yield watch
    watch.close()


def test_the_one_that_says_nothing_is_named(watch: Watch, workers: list[Worker]) -> None:
    workers[0].theirs.send(Done())
    workers[2].theirs.send(Done())
    with pytest.raises(WorkerError, match=r"^rank 2 said nothing for 0.2 s while loading; start again$"):
        watch.await_done("loading")
    assert not any(one.runs for one in workers)


def test_who_gets_on_is_waited_for_longer(watch: Watch, workers: list[Worker]) -> None:
    for worker in workers[1:]:
        worker.theirs.send(Done())
    workers[0].theirs.send(Working())
    while len(watch._heard) < 3:
        time.sleep(0.01)
    assert workers[0].runs
    watch._heard[workers[0]] += 3600.0  # as if it had said so an hour later  # pyright: ignore[reportArgumentType]
    threading.Timer(0.5, lambda: workers[0].theirs.send(Done())).start()
    watch.await_done("loading")


def test_each_done_is_waited_for_once(watch: Watch, workers: list[Worker]) -> None:
    for worker in workers:
        worker.theirs.send(Done())
    watch.await_done("starting")
    with pytest.raises(WorkerError, match=r"said nothing for 0.2 s while loading"):
        watch.await_done("loading")


def test_the_one_that_others_left_waits_in_vain(watch: Watch, workers: list[Worker]) -> None:
    """They end because a collective lasted too long; the one that runs on is the one that did not come."""
    failed = threading.Event()
    watch.when_failed(lambda failure: failed.set())
    for worker in (workers[0], workers[1]):
        worker.theirs.close()
    assert failed.wait(30.0)
    with pytest.raises(WorkerError, match=r"^rank 3 did not answer \(rank \d lost it\); start again$"):
        watch.check()
