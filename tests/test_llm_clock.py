"""What the seconds and counts of a request hold, and what they do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from simsd import LLM, SamplingParams
from simsd.engine import costs, scheduler
from simsd.engine.costs import Costs, CostTable
from simsd.llm import Completion, Stats

HELLO = [{"role": "user", "content": "Hello"}]
SHORT = SamplingParams(max_tokens=12)


def by_open(llm: LLM) -> Completion:
    generation = llm.open("abc", SHORT)
    generation.start()
    while not generation.ended:
        llm.step()
    return generation.completion()


def by_stream(llm: LLM) -> Completion:
    completion = list(llm.stream("abc", SHORT))[-1].completion
    assert completion is not None
    return completion


WAYS: dict[str, Any] = {
    "generate": lambda llm: llm.generate("abc", SHORT)[0],
    "chat": lambda llm: llm.chat(HELLO, SHORT)[0],
    "stream": by_stream,
    "open": by_open,
}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM()


@pytest.mark.parametrize("way", WAYS)
def test_no_request_counts_the_measuring_of_forwards(llm: LLM, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that stands still but while forwards are measured."""
    now = [0.0]

    def measure(*_: Any) -> CostTable:
        now[0] += 100.0
        return CostTable((4, 256), (1.0, 1.0))

    own = llm.with_options()
    own._costs = Costs()  # nothing is measured yet
    monkeypatch.setattr(costs, "measure", measure)
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    stats = WAYS[way](own).stats
    assert now == [100.0] and stats.rounds > 0
    assert stats.seconds == stats.prefill_seconds == own.totals.seconds == 0


def test_what_is_prepared_is_not_measured_again(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    llm.prepare()
    monkeypatch.setattr(costs, "measure", lambda *_: pytest.fail("measured again"))
    assert llm.with_options(method="exact").generate("abc", SHORT)[0].stats.rounds > 0


def test_what_was_counted_since_is_the_difference(llm: LLM) -> None:
    own = llm.with_options(num_speculative_tokens=4)
    first = own.generate("abc", SamplingParams(max_tokens=8))[0].stats
    before = own.totals
    second = own.chat(HELLO, SamplingParams(max_tokens=24))[0].stats
    grown = own.totals.since(before)
    for name in ("tokens", "rounds", "target_forwards", "drafted_tokens", "query_tokens", "prompt_tokens"):
        assert getattr(grown, name) == getattr(second, name) > 0, name
    assert sum(grown.acceptance_histogram) == sum(second.acceptance_histogram)
    assert Stats.sum([first, second]).tokens == own.totals.tokens
