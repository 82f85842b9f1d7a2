"""Processes that are started, lost, closed: always one sentence, and never one that is left over."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from simsd import LLM, SamplingParams, WorkerError
from simsd.distributed.call import Call
from simsd.distributed.process import Process, start
from simsd.distributed.watch import Watch
from simsd.distributed.workers import Workers
from simsd.models.loader import look_at
from tests.distributed.support import decode, ended, make, workers_of
from tests.tiny import prompt_of

LONG = SamplingParams(max_tokens=200, ignore_eos=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workers")


def call_for_ever(workers: Workers) -> None:
    while True:
        workers.call("drop_cache", 0)


def decode_for_ever(llm: LLM) -> None:
    while True:
        llm.generate(prompt_of(8), LONG)


def kill_in_a_round(llm: LLM) -> threading.Thread:
    """Kills the worker while text is decoded."""

    def kill() -> None:
        while llm.totals.rounds < 3:
            pass
        os.kill(workers_of(llm)._processes[0].pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def test_a_worker_that_is_killed_ends_the_run_with_one_sentence(home: Path):
    llm = make(home, 2, method="none")
    thread = kill_in_a_round(llm)
    with pytest.raises(WorkerError) as caught:
        decode_for_ever(llm)
    thread.join()
    assert "rank 1" in str(caught.value)
    assert "was ended by SIGKILL; start again" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not llm.alive
    assert ended(workers_of(llm))
    with pytest.raises(WorkerError, match="SIGKILL"):
        llm.with_options(method="exact").generate(prompt_of(8), LONG)


def test_a_worker_that_fails_says_why(home: Path, monkeypatch: pytest.MonkeyPatch):
    """It is started with the same places to look for modules, of which Python passes over what is no string."""
    monkeypatch.setattr("sys.path", [home, None, *sys.path, f"{home}:{home}"])
    workers = Workers([torch.device("cpu")] * 2)
    workers._processes[0].send(Call("no_such_thing", ()))
    said = r"rank 1 .* failed with AttributeError: .*no_such_thing.*; start again"
    with pytest.raises(WorkerError, match=said) as caught:
        call_for_ever(workers)
    assert "in _serve" in str(caught.value.__cause__)
    assert not workers.alive
    assert ended(workers)


def test_a_worker_that_does_not_come_is_not_waited_for_for_ever(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("simsd.distributed.group.PATIENCE", timedelta(seconds=1))  # rank 0's alone
    monkeypatch.setattr("simsd.distributed.workers._NOTICE", 0.1)
    llm = make(home, 2)
    lost: list[bool] = []
    llm.when_lost(lambda error: lost.append(llm.alive))
    os.kill(workers_of(llm)._processes[0].pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match=r"rank 1 of the tensor-parallel ranks \(process \d+\) did not answer"):
        llm.generate(prompt_of(8), LONG)
    assert ended(workers_of(llm))
    assert lost == [False]
    llm.when_lost(lambda error: lost.append(llm.alive))  # too late to wait for it
    assert lost == [False, False]


def stop(workers: Iterable[Process]) -> None:
    for process in workers:
        os.kill(process.pid, signal.SIGSTOP)


def test_a_worker_that_does_not_start_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("simsd.distributed.watch._PATIENCE", 0.2)
    started: list[Process] = []

    def start_stopped(ranks: Iterable[int]) -> list[Process]:
        started.extend(start(ranks))
        stop(started)
        return started

    monkeypatch.setattr("simsd.distributed.watch.start", start_stopped)
    with pytest.raises(WorkerError, match=r"rank 1 of .* \(process \d+\) said nothing for 0.2 s while starting; start"):
        Workers([torch.device("cpu")] * 2)
    assert [one._process.returncode for one in started] == [-signal.SIGKILL]


def test_a_worker_that_does_not_connect_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("simsd.distributed.group.CONNECT", timedelta(seconds=1))  # rank 0's alone
    monkeypatch.setattr("simsd.distributed.workers._NOTICE", 0.1)
    await_done = Watch.await_done

    def await_and_stop(self: Watch, doing: str) -> None:
        await_done(self, doing)
        stop(self.processes)

    monkeypatch.setattr(Watch, "await_done", await_and_stop)
    with pytest.raises(WorkerError, match=r"rank 1 of .* \(process \d+\) did not answer \(while connecting"):
        Workers([torch.device("cpu")] * 2)


def test_a_worker_that_does_not_load_is_given_up(home: Path, monkeypatch: pytest.MonkeyPatch):
    workers = Workers([torch.device("cpu")] * 2)
    monkeypatch.setattr("simsd.distributed.watch._PATIENCE", 0.2)
    stop(workers._processes)
    make(home, 1)
    checkpoint, _ = look_at(home / "target", "float64", workers.device)
    with pytest.raises(WorkerError, match=r"rank 1 of .* said nothing for 0.2 s while loading; start again"):
        workers.load(checkpoint)
    assert ended(workers)


def test_one_set_of_workers_from_start_to_end(home: Path, monkeypatch: pytest.MonkeyPatch):
    llm = make(home, 2)
    workers, expected = workers_of(llm), decode(llm)
    other = llm.with_options(method="simsd")
    assert workers_of(other) is workers

    wait = Future.result

    def interrupted_at(number: int) -> Callable[..., Any]:
        calls = count(1)

        def result(self: Future[Any], timeout: float | None = None) -> Any:
            if next(calls) == number:
                raise KeyboardInterrupt
            return wait(self, timeout)

        return result

    for at in (1, 4, 19):  # as Ctrl-C does while a call is under way
        with monkeypatch.context() as patch:
            patch.setattr(Future, "result", interrupted_at(at))
            with pytest.raises(KeyboardInterrupt):
                decode(llm)
        assert decode(llm) == expected

    decode(other)
    caches = set(workers.rank.caches)
    del other
    gc.collect()
    assert decode(llm) == expected
    assert len(caches - set(workers.rank.caches)) == 2  # of the target and of the draft model

    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(decode(llm.with_options()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected, expected]

    assert llm.alive
    llm.close()
    llm.close()
    assert not llm.alive
    assert ended(workers)
    with pytest.raises(WorkerError, match="this LLM is closed; make a new one"):
        decode(llm)


def test_workers_end_with_the_last_llm_that_uses_them(home: Path):
    with ThreadPoolExecutor(1) as pool:  # a thread that ends before they do
        llm = pool.submit(make, home, 2).result()
    other, workers = llm.with_options(method="none"), workers_of(llm)
    processes = workers._processes
    del llm, workers
    gc.collect()
    assert decode(other)
    assert all(process._process.returncode is None for process in processes)
    del other
    gc.collect()
    assert [process._process.returncode for process in processes] == [0]


def test_threads_are_divided_among_the_ranks():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        workers = Workers([torch.device("cpu")] * 2)
        assert torch.get_num_threads() == 4  # the program's own are left alone
        assert workers._in_turn(torch.get_num_threads) == 2
        workers.close()
    finally:
        torch.set_num_threads(before)
