"""The engine turn by turn, on models that do nothing: who gets a place, who leaves, and what a failure costs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from simsd.engine.completion import Completion, Piece
from simsd.engine.request import Stats
from simsd.errors import NumericalError
from simsd.serving.engine import Engine, Job, Update
from simsd.serving.errors import ApiError
from simsd.serving.metrics import Metrics


@dataclass(eq=False)
class FakeLLM:
    """Counts its rounds; `log` is shared between several, to see whose turn it was."""

    name: str = "llm"
    log: list[str] = field(default_factory=list)
    generations: list[FakeGeneration] = field(default_factory=list)
    broken: bool = False

    def step(self) -> None:
        self.log.append(self.name)
        if self.broken:
            raise RuntimeError("a kernel failed at address 0xdeadbeef")
        for generation in self.generations:
            generation.rounds_run += 1


@dataclass(eq=False)
class FakeGeneration:
    """Gives a token a round and ends after `length` of them."""

    llm: FakeLLM
    length: int = 1
    fails: bool = False
    rounds_run: int = 0
    events: list[str] = field(default_factory=list)
    sequence: Any = field(default_factory=lambda: SimpleNamespace(stats=Stats(prompt_tokens=3)))

    def start(self) -> None:
        self.events.append("start")
        self.llm.generations.append(self)

    def cancel(self) -> None:
        self.events.append("cancel")
        if self in self.llm.generations:
            self.llm.generations.remove(self)

    @property
    def decoded(self) -> int:
        return self.rounds_run

    def rounds(self) -> list[Any]:
        return []

    def read(self) -> Piece | None:
        if self.fails:
            raise NumericalError("the logits were not numbers")
        if self.rounds_run < self.length:
            return Piece("x", [1])
        self.llm.generations.remove(self)
        return Piece("x", [1], Completion("", "x" * self.length, [1] * self.length, "length", stats=Stats(self.length)))


@dataclass
class FakePool:
    released: list[Any] = field(default_factory=list)
    discarded: list[Any] = field(default_factory=list)

    def release(self, llm: Any) -> None:
        self.released.append(llm)

    def discard(self, llm: Any) -> None:
        self.discarded.append(llm)


@dataclass
class Client:
    """A job with the updates that it got."""

    job: Job
    updates: list[Update] = field(default_factory=list)

    @property
    def error(self) -> ApiError:
        assert len(self.updates) == 1
        assert self.updates[0].error is not None
        return self.updates[0].error

    @property
    def done(self) -> bool:
        return bool(self.updates) and self.updates[-1].last


def client(llm: FakeLLM, length: int = 1, timeout: float = 100.0, **more: Any) -> Client:
    updates: list[Update] = []
    generation: Any = FakeGeneration(llm, length, **more)
    target: Any = llm
    return Client(Job("req-1", 0, target, generation, updates.append, timeout), updates)


@dataclass
class Bench:
    engine: Engine
    pool: FakePool
    metrics: Metrics

    def value(self, name: str, **labels: str) -> float:
        found = self.metrics.registry.get_sample_value(name, {"model_name": "m", "engine": "0"} | labels)
        assert found is not None
        return found


def bench(slots: int = 2, max_waiting: int = 2) -> Bench:
    pool: Any = FakePool()
    metrics = Metrics("m")
    return Bench(Engine(pool, slots, max_waiting, metrics), pool, metrics)


def test_places_are_filled_in_order_and_refilled_as_they_fall_free() -> None:
    it, llm = bench(), FakeLLM()
    clients = [client(llm, length) for length in (3, 1, 2, 1)]
    it.engine.submit([one.job for one in clients])
    started = []
    for _ in range(4):
        assert it.value("vllm:num_requests_running") <= 2
        it.engine.turn()
        started.append([bool(one.job.generation.events) for one in clients])  # type: ignore[attr-defined]
    assert started[0] == [True, True, False, False]
    assert started[1] == [True, True, True, False]
    assert all(one.done for one in clients)
    assert [len(one.updates) for one in clients] == [3, 1, 2, 1]
    assert it.pool.released == [llm] * 4
    assert it.engine.open_jobs == 0
    assert it.value("vllm:request_success_total", finished_reason="length") == 4
    assert it.value("vllm:generation_tokens_total") == 7
    assert it.value("vllm:prompt_tokens_total") == 12


def test_what_does_not_fit_is_refused_whole_and_told_when_to_return() -> None:
    it, llm = bench(slots=2, max_waiting=2), FakeLLM()
    it.engine.submit([client(llm).job for _ in range(3)])
    with pytest.raises(ApiError) as caught:
        it.engine.submit([client(llm).job for _ in range(2)])
    assert (caught.value.status, caught.value.code) == (429, "queue_full")
    assert 1 <= int(caught.value.headers["retry-after"]) <= 60
    assert it.engine.open_jobs == 3
    it.engine.submit([client(llm).job])
    with pytest.raises(ApiError):
        it.engine.check_room(1)
    it.engine.turn()
    it.engine.check_room(2)


def test_a_full_queue_says_how_many_wait_at_every_moment() -> None:
    it, llm = bench(slots=1, max_waiting=3), FakeLLM()
    it.engine.submit([client(llm, 9).job for _ in range(4)])
    for _ in range(2):  # before one of them has begun, and after
        with pytest.raises(ApiError, match=r"^3 answers"):
            it.engine.submit([client(llm).job])
        it.engine.turn()


def test_aborting_tells_everyone_at_once_though_no_round_ends() -> None:
    it, llm = bench(slots=1), FakeLLM()
    clients = [client(llm, 9), client(llm, 9)]
    it.engine.submit([one.job for one in clients])
    it.engine.turn()
    it.engine.abort()
    for one in clients:
        assert one.updates[-1].error is not None
        assert one.updates[-1].error.code == "shutting_down"
    told = [len(one.updates) for one in clients]
    it.engine.turn()
    assert it.engine.open_jobs == 0
    assert [len(one.updates) for one in clients] == told
    with pytest.raises(ApiError, match="shutting down"):
        it.engine.check_room(1)


def test_a_cancelled_job_is_out_before_the_next_round() -> None:
    it, llm = bench(slots=1), FakeLLM()
    running, waiting, third = client(llm, 9), client(llm, 9), client(llm, 1)
    it.engine.submit([running.job, waiting.job, third.job])
    it.engine.turn()
    it.engine.cancel([running.job, waiting.job])
    it.engine.turn()
    assert running.job.generation.rounds_run == 1  # type: ignore[attr-defined]
    assert waiting.job.generation.events == ["cancel"]  # type: ignore[attr-defined]
    assert third.done
    assert len(running.updates) == 1
    assert waiting.updates == []
    assert it.pool.released == [llm] * 3
    assert it.value("vllm:request_success_total", finished_reason="abort") == 2
    it.engine.cancel([third.job])  # has ended: nothing to do
    it.engine.turn()
    assert len(it.pool.released) == 3


def test_who_is_late_gets_an_error_whether_it_runs_or_waits() -> None:
    it, llm = bench(slots=1), FakeLLM()
    running, waiting, third = client(llm, 9), client(llm, timeout=0.0), client(llm)
    it.engine.submit([running.job, waiting.job, third.job])
    it.engine.turn()
    assert (waiting.error.status, waiting.error.code) == (504, "request_timeout")
    running.job.timeout = 0.0
    running.updates.clear()
    it.engine.turn()
    assert running.error.code == "request_timeout"
    assert third.done
    assert third.updates[-1].error is None
    assert it.value("vllm:request_success_total", finished_reason="error") == 2


def test_a_round_that_fails_costs_only_those_who_share_its_caches() -> None:
    it, good, bad = bench(slots=4), FakeLLM("good"), FakeLLM("bad", broken=True)
    clients = [client(good, 2), client(bad, 2), client(bad, 2)]
    it.engine.submit([one.job for one in clients])
    it.engine.turn()
    it.engine.turn()
    for one in clients[1:]:
        assert (one.error.status, one.error.code) == (500, "internal_error")
        assert "0xdeadbeef" not in str(one.error)
        assert "req-1" in str(one.error)
    assert clients[0].done
    assert it.pool.discarded == [bad]
    assert it.engine.open_jobs == 0


def test_no_memory_is_told_as_such() -> None:
    it, llm = bench(), FakeLLM()

    def step() -> None:
        raise MemoryError

    llm.step = step  # type: ignore[method-assign]
    one = client(llm)
    it.engine.submit([one.job])
    it.engine.turn()
    assert (one.error.status, one.error.code) == (503, "out_of_memory")


def test_a_sequence_that_fails_fails_alone() -> None:
    it, llm = bench(), FakeLLM()
    bad, good = client(llm, fails=True), client(llm, 2)
    it.engine.submit([bad.job, good.job])
    it.engine.turn()
    it.engine.turn()
    assert (bad.error.status, bad.error.code) == (500, "numerical_error")
    assert "not numbers" in str(bad.error)
    assert good.done
    assert it.pool.discarded == []


def test_all_sets_of_options_get_a_round_in_every_turn() -> None:
    it, log = bench(slots=3), []
    llms = [FakeLLM(name, log) for name in "ab"]
    it.engine.submit([client(llms[0], 3).job, client(llms[1], 2).job, client(llms[0], 3).job])
    for _ in range(3):
        it.engine.turn()
    assert log == ["a", "b", "a", "b", "a"]


def test_a_loop_that_is_closed_counts_as_a_client_that_left() -> None:
    it, llm = bench(), FakeLLM()

    def deliver(update: Update) -> None:
        raise RuntimeError("Event loop is closed")

    one = client(llm, 9)
    one.job.deliver = deliver
    it.engine.submit([one.job])
    it.engine.turn()
    it.engine.turn()
    assert it.engine.open_jobs == 0
    assert one.job.generation.rounds_run == 1  # type: ignore[attr-defined]


def test_closing_finishes_what_is_there_and_takes_no_more() -> None:
    it, llm = bench(slots=1), FakeLLM()
    clients = [client(llm, 5), client(llm, 5)]
    it.engine.submit([one.job for one in clients])
    it.engine.start()
    it.engine.close(grace=30.0)
    assert all(one.done and one.updates[-1].error is None for one in clients)
    assert not it.engine.alive
    with pytest.raises(ApiError) as caught:
        it.engine.submit([client(llm).job])
    assert (caught.value.status, caught.value.code) == (503, "shutting_down")


def test_closing_without_grace_ends_the_rest_with_an_error() -> None:
    it, llm = bench(slots=1), FakeLLM()
    begun = threading.Event()
    clients = [client(llm, 10**9), client(llm, 10**9)]
    clients[0].job.deliver = lambda update: (clients[0].updates.append(update), begun.set())  # type: ignore[assignment, func-returns-value]
    it.engine.submit([one.job for one in clients])
    it.engine.start()
    assert begun.wait(30.0)
    it.engine.close(grace=0.0)
    for one in clients:
        assert one.updates[-1].error is not None
        assert one.updates[-1].error.code == "shutting_down"
    assert it.engine.open_jobs == 0


def test_drafts_are_counted_a_round_at_a_time() -> None:
    it, llm = bench(), FakeLLM()
    one = client(llm, 3)
    it.engine.submit([one.job])
    stats = one.job.generation.sequence.stats
    for drafted, accepted in ((4, 3), (4, 3), (7, 4)):  # totals: 4 drafted and 3 kept, a round without, 3 and 1
        stats.drafted_tokens, stats.accepted_tokens = drafted, accepted
        it.engine.turn()
    assert it.value("vllm:spec_decode_num_drafts_total") == 2
    assert it.value("vllm:spec_decode_num_draft_tokens_total") == 7
    assert it.value("vllm:spec_decode_num_accepted_tokens_total") == 4
    per_position = [it.value("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(at)) for at in range(3)]
    assert per_position == [2, 1, 1]
