"""The thread that drafts ahead: what goes wrong in it, when it ends, and what it shares with the rounds."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

from simsd.core.draft import Draft
from simsd.drafters.ahead import Ahead, queue_of
from simsd.drafters.base import Around, DraftRequest
from simsd.drafters.model import ModelDrafter
from simsd.engine.options import SamplingParams
from simsd.engine.scheduler import Scheduler
from tests.cuda import Books, Stream, cuda
from tests.drafters.test_ahead import SIZE, Noted, perfect
from tests.tiny import Request, decode, engine, prompt_of, runner, submit, tiny_model

__all__ = ["cuda"]


class Failing(ModelDrafter):
    """It fails in the thread, `times` times, and everywhere from `wherever` proposals on."""

    def __init__(self, times: int, wherever: int = 10**6) -> None:
        super().__init__(runner(tiny_model(2, 0, 0.0), SIZE), SIZE, SIZE)
        self.times, self.wherever, self.asked = times, wherever, 0

    def propose(self, request: DraftRequest) -> Draft:
        self.asked += 1
        beside = threading.current_thread().name.startswith("simsd-draft-ahead")
        if self.asked > self.wherever or (beside and self.times > 0):
            self.times -= 1
            raise RuntimeError("out of memory")
        return super().propose(request)


def test_a_failure_of_the_thread_costs_no_more_than_its_draft():
    asked = [Request(prompt_of(9), SamplingParams(max_tokens=40))]
    expected = decode(engine(tiny_model(), SIZE), asked)[0].token_ids
    scheduler = engine(tiny_model(), SIZE, Ahead(Failing(2)), num_speculative_tokens=4, states="chain")
    assert decode(scheduler, asked)[0].token_ids == expected
    assert scheduler.totals.drafts_ahead == scheduler.totals.rounds - 3


def test_a_failure_that_stays_is_raised_in_time():
    scheduler = engine(tiny_model(), SIZE, Ahead(Failing(0, wherever=1)), num_speculative_tokens=4)
    submit(scheduler, [Request(prompt_of(9), SamplingParams(max_tokens=40))])
    scheduler.step()
    with pytest.raises(RuntimeError, match="out of memory"):
        scheduler.step()


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("simsd-draft-ahead")]


def started() -> Scheduler:
    drafter = Noted(perfect(), pause=0.01)
    scheduler = engine(tiny_model(), SIZE, Ahead(drafter))
    submit(scheduler, [Request(prompt_of(9), SamplingParams(max_tokens=40))])
    scheduler.step()
    assert len(threads()) == 1
    return scheduler


def gone() -> bool:
    """Whether the thread ends, within seconds."""
    for _ in range(500):
        if not threads():
            return True
        time.sleep(0.01)
    return False


def test_closing_ends_the_thread_and_the_next_round_starts_another():
    gc.collect()
    assert gone()
    scheduler = started()
    scheduler.close()
    assert threads() == []
    scheduler.close()
    while scheduler.busy:
        scheduler.step()
    assert scheduler.totals.drafts_ahead > 0
    scheduler.close()


def test_the_thread_ends_with_the_last_that_could_use_it():
    gc.collect()
    assert gone()
    scheduler = started()
    del scheduler
    gc.collect()
    assert gone()


def test_it_works_in_one_thread_that_is_not_the_rounds():
    inside = Noted(perfect())
    scheduler = engine(tiny_model(), SIZE, Ahead(inside), states="chain")
    decode(scheduler, [Request(prompt_of(9), SamplingParams(max_tokens=40))])
    assert len(inside.threads) == 2 and threading.current_thread().name in inside.threads
    scheduler.close()


def test_rounds_outside_of_inference_mode_stay_outside():
    for mode in (True, False):
        modes: list[bool] = []

        class Watched(ModelDrafter):
            def propose(self, request: DraftRequest, modes: list[bool] = modes) -> Draft:
                modes.append(torch.is_inference_mode_enabled())
                return super().propose(request)

        drafter = Watched(runner(tiny_model(2, 0, 0.0), SIZE), SIZE, SIZE)
        scheduler = engine(tiny_model(), SIZE, Ahead(drafter))
        submit(scheduler, [Request(prompt_of(9), SamplingParams(max_tokens=20))])
        while scheduler.busy:
            with torch.inference_mode(mode), torch.no_grad():
                Scheduler._step(scheduler)  # without the mode that `step` sets
        assert set(modes) == {mode}
        scheduler.close()


class Streams:
    """Queues of a device: each thread has a current one, the default one unless it says otherwise."""

    def __init__(self) -> None:
        self.thread = threading.local()
        self.asked: set[torch.device] = set()

    @property
    def current(self) -> str:
        return getattr(self.thread, "stream", "default")

    @contextmanager
    def on(self, stream: str) -> Iterator[None]:
        before, self.thread.stream = self.current, stream
        try:
            yield
        finally:
            self.thread.stream = before

    def queue(self, device: torch.device) -> AbstractContextManager[None]:
        self.asked.add(device)
        return self.on(self.current)


def test_the_thread_works_in_the_queue_that_the_round_is_in():
    streams, seen = Streams(), []

    class Watched(ModelDrafter):
        def propose(self, request: DraftRequest) -> Draft:
            seen.append((threading.current_thread() is threading.main_thread(), streams.current))
            return super().propose(request)

    drafter = Watched(runner(tiny_model(2, 0, 0.0), SIZE), SIZE, SIZE)
    scheduler = engine(tiny_model(), SIZE, Ahead(drafter, streams.queue))
    for name in ("default", "one", "other"):
        with streams.on(name):
            decode(scheduler, [Request(prompt_of(9), SamplingParams(max_tokens=20))])
        assert set(seen) == {(True, name), (False, name)}
        seen.clear()
    assert streams.asked == {torch.device("cpu")}
    scheduler.close()


def test_the_queue_of_a_gpu_is_the_stream_of_the_thread_that_asks(cuda: Books):
    there, stream = torch.device("cuda:1"), Stream()
    with torch.cuda.stream(stream):  # type: ignore[arg-type]
        queue = queue_of(there)

    def current() -> Stream:
        with queue:
            return cuda.current

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: cuda.current).result() is cuda.default
        assert pool.submit(current).result() is stream
        assert pool.submit(lambda: cuda.current).result() is cuda.default


class Slow(Around):
    """A drafter that takes its time."""

    def propose(self, request: DraftRequest) -> Draft:
        time.sleep(0.003)
        return self.drafter.propose(request)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("rounds", [3, 1000])
def test_a_fork_drafts_on_with_a_thread_of_its_own(rounds: int):
    """In the middle of a text, while the thread is at work, and between two."""
    asked = [Request(prompt_of(9), SamplingParams(max_tokens=24))]
    expected = decode(engine(tiny_model(), SIZE), asked)[0].token_ids
    scheduler = engine(tiny_model(), SIZE, Ahead(Slow(perfect())))
    (begun,) = submit(scheduler, asked)
    for _ in range(rounds):
        if scheduler.busy:
            scheduler.step()
    child = os.fork()
    if child == 0:  # no pytest here, whatever happens
        try:
            while scheduler.busy:
                scheduler.step()
            fine = begun.token_ids == decode(scheduler, asked)[0].token_ids == expected and len(threads()) == 1
            scheduler.close()
            os._exit(0 if fine else 1)
        finally:
            os._exit(2)
    assert exit_of(child) == 0
    while scheduler.busy:
        scheduler.step()
    assert begun.token_ids == expected
    scheduler.close()


def exit_of(child: int) -> int | None:
    """Its exit code; None, and its end, if it hangs."""
    for _ in range(1000):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
