"""A request that cannot be taken in is its owner's alone: who else decodes with the LLM does not notice."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from simsd import LLM, RoomError, SamplingParams
from simsd.engine import costs
from simsd.engine.costs import Costs, CostTable
from simsd.engine.runner import Runner
from tests.tiny import folder_of, prompt_of

LONG, SHORT = prompt_of(90, 1), prompt_of(9, 2)
PARAMS = SamplingParams(max_tokens=12)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(folder_of(2, 0, 0.0), draft_model=folder_of(2, 0, 0.005), dtype="float64", device="cpu", max_num_seqs=2)


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> dict[str, BaseException]:
    """What long prompts fail with."""
    failure: dict[str, BaseException] = {"is": MemoryError()}
    opened = Runner.open

    def open_(self: Runner, slot: int, ids: list[int]) -> int:
        if len(ids) > 60:
            raise failure["is"]
        return opened(self, slot, ids)

    monkeypatch.setattr(Runner, "open", open_)
    return failure


def test_in_a_list_want_of_memory_is_the_completions_error(llm: LLM, refusing: dict[str, BaseException]) -> None:
    own = llm.with_options(num_speculative_tokens=4)
    first, bad, last = own.generate([SHORT, LONG, SHORT[:5]], PARAMS)
    assert isinstance(bad.error, RoomError) and (bad.finish_reason, bad.token_ids) == ("error", [])
    assert [len(one.token_ids) for one in (first, last)] == [12, 12]
    with pytest.raises(RoomError, match="a prompt of 90 tokens"):
        own.generate(LONG, PARAMS)


@pytest.mark.parametrize("failure", [MemoryError(), TypeError("a mistake in the model")], ids=repr)
def test_a_failure_is_raised_where_the_request_was_made(
    llm: LLM, failure: Exception, refusing: dict[str, BaseException]
) -> None:
    refusing["is"] = failure
    own = llm.with_options(num_speculative_tokens=4)
    (expected,) = own.generate([SHORT], PARAMS)
    stream = own.stream(SHORT, PARAMS)
    text = next(stream).text
    waiting = own.open(LONG, PARAMS)
    waiting.start()
    text += "".join(piece.text for piece in stream)  # its rounds meet the failure
    assert text == expected.text and waiting.ended
    kind = RoomError if isinstance(failure, MemoryError) else TypeError
    with pytest.raises(kind):
        waiting.read()
    with pytest.raises(kind):
        next(own.stream(LONG, PARAMS))


def test_a_failure_that_nobody_foresaw_is_raised_from_a_list_too(llm: LLM, refusing: dict[str, BaseException]) -> None:
    refusing["is"] = TypeError("a mistake in the model")
    with pytest.raises(TypeError, match="a mistake in the model"):
        llm.with_options(num_speculative_tokens=4).generate([SHORT, LONG], PARAMS)


def test_forwards_are_measured_once_and_beside_no_round(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    one = llm.with_options()
    one._costs = Costs()  # nothing is measured yet
    other = one.with_options()
    seen: list[tuple[bool, bool]] = []

    def measure(*_: Any) -> CostTable:
        second = threading.Thread(target=other.prepare)
        second.start()
        round_ = threading.Thread(target=one.step)
        round_.start()
        for thread in (second, round_):
            thread.join(0.1)
        seen.append((second.is_alive(), round_.is_alive()))
        threads.extend((second, round_))
        return CostTable((4, 256), (1.0, 1.0))

    threads: list[threading.Thread] = []
    monkeypatch.setattr(costs, "measure", measure)
    one.prepare()
    for thread in threads:
        thread.join()
    assert seen == [(True, True)]
