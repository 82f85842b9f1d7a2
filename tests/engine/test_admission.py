"""A sequence that cannot be taken in: it has its error, nobody is lost, and no other one notices (float64)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any

import pytest
import torch

from simsd.engine.auto import Auto
from simsd.engine.costs import CostTable
from simsd.engine.options import SamplingParams
from simsd.engine.request import Sequence
from simsd.engine.runner import Runner
from simsd.engine.scheduler import Scheduler
from simsd.errors import RoomError, WorkerError
from simsd.models.cache import KVCache
from simsd.models.transformer import Transformer
from tests.drafting import make_drafter
from tests.tiny import Request, decode, engine, prompt_of, submit, tiny_model

SIZE = 4
POINTS = {  # all that changes or may ask for memory while a sequence is taken in, of target and draft model
    Runner: ("open", "prefill", "hold", "take"),
    KVCache: ("grow", "grow_sequences", "copy", "swap", "clear"),
    Transformer: ("make_cache", "forward"),
}


def requests() -> list[Request]:
    """More than there are places; some share a head, and each needs a larger cache than the one before."""
    head, tails = prompt_of(8, 9), [2, 9, 20]
    return [Request(head + prompt_of(n, n), SamplingParams(max_tokens=1 + n % 3, seed=n)) for n in tails]


def made() -> Scheduler:
    scheduler = engine(tiny_model(), SIZE, make_drafter("model", SIZE), max_num_seqs=2, num_speculative_tokens=4)
    scheduler.target.piece = 12
    return scheduler


@contextmanager
def failing(at: int, error: BaseException) -> Iterator[Callable[[], int]]:
    """The call number `at` during admissions fails. Gives the calls so far."""
    calls, admitting = [0], [False]

    def wrapped(function: Callable[..., Any], fill: bool = False) -> Callable[..., Any]:
        @wraps(function)
        def call(*given: Any, **more: Any) -> Any:
            if fill:
                admitting[0] = True
                try:
                    return function(*given, **more)
                finally:
                    admitting[0] = False
            calls[0] += admitting[0]
            if admitting[0] and calls[0] == at:
                raise error
            return function(*given, **more)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "_fill", wrapped(Scheduler._fill, fill=True))
        for owner, names in POINTS.items():
            for name in names:
                patch.setattr(owner, name, wrapped(getattr(owner, name)))
        yield lambda: calls[0]


def advance(scheduler: Scheduler, sequences: list[Sequence]) -> None:
    """One step, after which each sequence has ended or is in one list, once."""
    try:
        scheduler.step()
    finally:
        held = [*scheduler.waiting, *scheduler.running]
        for sequence in sequences:
            assert held.count(sequence) == (sequence.finish_reason is None)


def go_on(scheduler: Scheduler) -> None:
    while scheduler.busy:
        scheduler.step()


def finish(scheduler: Scheduler, sequences: list[Sequence]) -> None:
    for _ in range(200):
        if not scheduler.busy:
            break
        advance(scheduler, sequences)
    assert all(sequence.finish_reason is not None for sequence in sequences)


def points() -> range:
    """The numbers of all calls that admissions make."""
    with failing(0, RuntimeError()) as calls:
        decode(made(), requests())
        return range(1, calls() + 1)


def spoken(sequences: list[Sequence]) -> list[tuple[list[int], list[int], int]]:
    return [(sequence.token_ids, sequence.token_steps, len(sequence.token_logprobs)) for sequence in sequences]


def test_a_failure_anywhere_in_an_admission_ends_one_sequence_and_harms_no_other() -> None:
    expected, numbers = spoken(decode(made(), requests())), points()
    assert len(numbers) > 30
    for at in numbers:
        error = RuntimeError(f"call {at}")
        with failing(at, error):
            scheduler = made()
            sequences = submit(scheduler, requests())
            finish(scheduler, sequences)
        (bad,) = [place for place, one in enumerate(sequences) if one.finish_reason == "error"]
        assert sequences[bad].error is error and sequences[bad].token_ids == []
        good = [place for place in range(len(sequences)) if place != bad]
        assert [spoken(sequences)[place] for place in good] == [expected[place] for place in good]
        if at % 4 == 0:  # what it left behind harms no later one either
            assert spoken(decode(scheduler, requests())) == expected


@pytest.mark.parametrize("error", [KeyboardInterrupt(), WorkerError("a rank is lost")], ids=["Ctrl-C", "a lost rank"])
def test_what_concerns_no_single_sequence_ends_none_of_them(error: BaseException) -> None:
    expected = spoken(decode(made(), requests()))
    for at in points()[::4]:
        with failing(at, error):
            scheduler = made()
            sequences = submit(scheduler, requests())
            with pytest.raises(type(error)):
                finish(scheduler, sequences)
            assert all(sequence.finish_reason != "error" for sequence in sequences)
            finish(scheduler, sequences)
        assert spoken(sequences) == expected


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")])
def test_want_of_memory_is_told_in_one_sentence_that_keeps_no_tensors(error: Exception) -> None:
    with failing(points()[-1], error):
        scheduler = made()
        sequences = submit(scheduler, requests())
        finish(scheduler, sequences)
    told = sequences[-1].error
    assert isinstance(told, RoomError)
    assert "a prompt of 28 tokens; use shorter prompts" in str(told)
    assert told.__cause__ is told.__context__ is told.__traceback__ is None


class Waiting(Auto):
    """New prompts wait for the draft model, which is asked for a draft in every third round."""

    def __init__(self) -> None:
        super().__init__(lambda: CostTable((4, 256), (1.0, 1.0)), SIZE)

    def drafts(self, sequences: int) -> bool:
        return False

    def blocks(self, sequences: int, fresh: bool, longest: int = 3) -> int:
        self.rounds += 1
        return min(int(self.rounds % 3 == 0), longest)


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_a_draft_model_without_memory_for_what_it_has_to_read_drafts_nothing_and_harms_nobody(error) -> None:
    drafter = make_drafter("model", SIZE)
    prefill = drafter.forward.prefill

    def bounded(slot: int, ids: list[int], stored: int) -> None:
        if len(ids) > 100:
            raise error
        prefill(slot, ids, stored)

    drafter.forward.prefill = bounded
    asked = [Request(prompt_of(length, length), SamplingParams(max_tokens=30)) for length in (10, 150, 60)]
    expected = decode(engine(tiny_model(), SIZE), asked)
    found = decode(engine(tiny_model(), SIZE, drafter, auto=Waiting()), asked)
    assert [s.token_ids for s in found] == [s.token_ids for s in expected]
    assert found[0].stats.draft_forwards == 0
    assert decode(engine(tiny_model(), SIZE, drafter, auto=Waiting()), asked[:1])[0].stats.draft_forwards > 0


@contextmanager
def interrupted(owner: type, name: str, at: int) -> Iterator[list[int]]:
    """Ctrl-C before line number `at` of those that run in a method. Gives the lines so far."""
    lines, method = [0], getattr(owner, name)

    def watch(frame: FrameType, event: str, _: Any) -> Any:
        lines[0] += event == "line"
        if event == "line" and lines[0] == at:
            raise KeyboardInterrupt
        return watch

    def watched(*given: Any) -> Any:
        before = sys.gettrace()
        sys.settrace(watch)
        try:
            return method(*given)
        finally:
            sys.settrace(before)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, watched)
        yield lines


@pytest.mark.parametrize(
    ("owner", "name"), [(Scheduler, "_part"), (Sequence, "put")], ids=["while sequences leave", "while text is kept"]
)
def test_an_interruption_harms_nobody(owner: type, name: str) -> None:
    expected = spoken(decode(made(), requests()))
    with interrupted(owner, name, 0) as lines:
        decode(made(), requests())
    assert lines[0] > 100
    for at in range(1, lines[0] + 1, 3):
        scheduler = made()
        sequences = submit(scheduler, requests())
        with interrupted(owner, name, at), pytest.raises(KeyboardInterrupt):
            go_on(scheduler)
        finish(scheduler, sequences)
        assert spoken(sequences) == expected, at
