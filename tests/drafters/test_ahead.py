"""A draft that is made while the target verifies is the one that would be made in time, or is not used."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from simsd.core.draft import Draft
from simsd.drafters.ahead import Ahead, Standing
from simsd.drafters.base import Around, Drafter, DraftRequest, SequenceView
from simsd.drafters.model import ModelDrafter
from simsd.engine.auto import Choice
from simsd.engine.options import SamplingParams
from simsd.engine.request import Sequence
from simsd.engine.scheduler import Scheduler
from tests.engine.test_auto import Whims
from tests.engine.test_scheduler import crowd
from tests.integration.test_exactness import SAMPLERS, SCHEDULES, schedule
from tests.pairwise import pairwise
from tests.tiny import MASK, Request, decode, engine, prompt_of, runner, submit, tiny_model

SIZE = 4
GOOD, FAIR, USELESS = (2, 0, 0.005), (2, 0, 0.02), (2, 9, 0.0)  # draft models


def draft_model(which: tuple[int, int, float] = FAIR, *, looks: int = SIZE, hybrid: bool = False) -> ModelDrafter:
    return ModelDrafter(runner(tiny_model(*which), SIZE), SIZE, looks, target_first=hybrid)


def perfect() -> ModelDrafter:
    return draft_model((2, 0, 0.0))


class Noted(Around):
    """A drafter whose drafts are kept, and which must not be used by two threads at a time."""

    def __init__(self, drafter: Drafter, pause: float = 0.0) -> None:
        super().__init__(drafter)
        self.pause = pause
        self.drafts: list[Draft] = []
        self.threads: set[str] = set()
        self._busy = threading.Lock()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        assert self._busy.acquire(blocking=False), "two threads at a time"
        try:
            yield
            time.sleep(self.pause)
        finally:
            self._busy.release()

    def propose(self, request: DraftRequest) -> Draft:
        with self._alone():
            self.threads.add(threading.current_thread().name)
            self.drafts.append(self.drafter.propose(request))
        return self.drafts[-1]

    def admit(self, sequence: SequenceView, slot: int, soon: bool = True) -> None:
        with self._alone():
            self.drafter.admit(sequence, slot, soon)

    def catch_up(self, sequences: list[SequenceView], blocks: int) -> bool:
        with self._alone():
            return self.drafter.catch_up(sequences, blocks)

    def leave(self, sequence: SequenceView, slot: int, mover: SequenceView, last: int) -> None:
        with self._alone():
            self.drafter.leave(sequence, slot, mover, last)


def counted(one: Sequence) -> tuple[Any, ...]:
    """All that a sequence came to, but for how often the draft model ran and when."""
    stats = one.stats
    rounds = (stats.rounds, stats.drafted_tokens, stats.accepted_tokens, stats.committed_tokens, stats.query_tokens)
    return one.token_ids, one.token_steps, one.token_logprobs, one.finish_reason, rounds


def assert_drafts_are_the_same(found: list[Draft], expected: list[Draft]) -> None:
    assert len(found) == len(expected)
    for mine, other in zip(found, expected, strict=True):
        assert torch.equal(mine.tokens, other.tokens) and torch.equal(mine.step, other.step)
        assert mine.doubt is not None and other.doubt is not None and torch.equal(mine.doubt, other.doubt)
        assert mine.proposal is other.proposal is None


def both_ways(
    requests: list[Request], make: Callable[[], ModelDrafter] = draft_model, pause: float = 0.0, **options: Any
) -> Scheduler:
    """Decodes with drafts in time and with drafts ahead, compares everything, and returns the latter's scheduler."""
    in_time, ahead = Noted(make()), Noted(Ahead(Noted(make(), pause)))
    expected = decode(engine(tiny_model(), SIZE, in_time, **options), requests)
    scheduler = engine(tiny_model(), SIZE, ahead, **options)
    found = decode(scheduler, requests)
    assert [counted(one) for one in found] == [counted(one) for one in expected]
    assert_drafts_are_the_same(ahead.drafts, in_time.drafts)
    scheduler.close()
    return scheduler


@pytest.mark.parametrize(
    "case",
    pairwise({"schedule": SCHEDULES, "sampler": tuple(SAMPLERS), "hybrid": (False, True), "window": (3, 8)}),
    ids=lambda case: ", ".join(str(value) for value in case.values()),
)
def test_with_every_schedule_and_sampler_it_is_the_draft_that_would_be_made_in_time(case):
    how = schedule(case["schedule"], SIZE) | SAMPLERS[case["sampler"]]
    asked = [Request(prompt_of(9), SamplingParams(max_tokens=33, seed=3, **how))]
    made = both_ways(asked, lambda: draft_model(GOOD, hybrid=case["hybrid"]), num_speculative_tokens=case["window"])
    assert case["hybrid"] or made.totals.drafts_ahead > 0


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("places", [1, 2, 3, 16])
def test_sequences_that_join_and_leave_change_nothing(places, hybrid):
    made = both_ways(crowd(), lambda: draft_model(hybrid=hybrid), pause=0.0005, max_num_seqs=places)
    assert places > 1 or made.totals.drafts_ahead > 0


@pytest.mark.parametrize("options", [{"states": "chain"}, {"states": "likely"}, {"states": "subsets"}])
@pytest.mark.parametrize("looks", [1, 4])
def test_whatever_is_verified_and_however_often_it_looks(options, looks):
    asked = [Request(prompt_of(5, seed), SamplingParams(max_tokens=25)) for seed in range(2)]
    both_ways(asked, lambda: draft_model(looks=looks), **options)


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_window_that_changes_from_round_to_round(hybrid):
    asked = [Request(prompt_of(9), SamplingParams(max_tokens=40, temperature=0.5, seed=1))]
    outcomes = []
    for wrap in (lambda drafter: drafter, Ahead):
        drafter = Noted(wrap(draft_model((2, 0, 0.0), hybrid=hybrid)))
        scheduler = engine(tiny_model(), SIZE, drafter, auto=Whims(4))
        (found,) = decode(scheduler, asked)
        outcomes.append((found, drafter.drafts, scheduler.totals))
    (expected, in_time, _), (found, ahead, totals) = outcomes
    assert counted(found) == counted(expected)
    assert_drafts_are_the_same(ahead, in_time)
    assert totals.drafts_ahead > 0


class Seldom(Whims):
    """Drafts in every 24th round; keeps the rounds in which the drafter had to catch up first."""

    def __init__(self) -> None:
        super().__init__(0)
        self.read: list[int] = []

    def blocks(self, sequences: int, fresh: bool, longest: int = 3) -> int:
        self.rounds += 1
        return int(self.rounds % 24 == 0)

    def observe(
        self, choice: Choice, sequences: int, rows: int, seconds: float, visited: list[float], reading: float = 0.0
    ) -> None:
        if reading:
            self.read.append(self.rounds)


def test_catching_up_is_no_part_of_a_round_however_long_the_thread_has_been_done():
    asked = [Request(prompt_of(9), SamplingParams(max_tokens=60))]
    read = []
    for wrap in (lambda drafter: drafter, Ahead):
        auto = Seldom()
        decode(engine(tiny_model(), SIZE, wrap(draft_model()), denoising_steps=2, auto=auto), asked)
        read.append(auto.read)
    assert read[0] == read[1] == [24]


def test_prefix_caching_goes_on_beside_it():
    """Places hold texts of ended sequences; what is drafted ahead and dropped must not spoil them."""
    common = prompt_of(24, 1)
    asked = [Request(common + prompt_of(4 * n, n), SamplingParams(max_tokens=12, seed=n)) for n in range(1, 5)]
    made = both_ways(asked, max_num_seqs=2)
    assert made.totals.cached_tokens > 0 and made.totals.drafts_ahead > 0


def test_a_stop_string_ends_a_sequence_for_which_more_was_drafted():
    (whole,) = decode(engine(tiny_model(), SIZE), [Request(prompt_of(9), SamplingParams(max_tokens=40))])
    stop = "".join(chr(ord("A") + i) for i in whole.token_ids[17:20])
    asked = [Request(prompt_of(9), SamplingParams(max_tokens=40, stop=[stop]))]
    asked.append(Request(prompt_of(11, 2), SamplingParams(max_tokens=50)))
    both_ways(asked, perfect)


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_a_sequence_is_cancelled_while_its_next_draft_is_made(rounds):
    asked = [Request(prompt_of(length, length), SamplingParams(max_tokens=40)) for length in (9, 14, 3)]
    alone = [decode(engine(tiny_model(), SIZE), [one])[0].token_ids for one in asked]
    drafter = Noted(Ahead(Noted(perfect(), pause=0.002)))
    scheduler = engine(tiny_model(), SIZE, drafter, max_num_seqs=2)
    sequences = submit(scheduler, asked)
    for _ in range(rounds):
        scheduler.step()
    scheduler.cancel(sequences[0])
    while scheduler.busy:
        scheduler.step()
    assert [s.token_ids for s in sequences[1:]] == alone[1:]


@pytest.mark.parametrize("hybrid", [False, True])
def test_the_cache_grows_in_whichever_thread_needs_it(hybrid):
    asked = [Request(prompt_of(5), SamplingParams(max_tokens=60))]
    scheduler = both_ways(asked, lambda: draft_model((2, 0, 0.0), hybrid=hybrid), num_speculative_tokens=12)
    assert scheduler.totals.drafts_ahead > 0


# ------------------------------------------------------------------ how often it is of use
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("window", [4, 6, 11])  # no less than a step
def test_a_perfect_draft_model_drafts_all_but_the_first_window_ahead(window, name):
    params = SamplingParams(max_tokens=26, seed=3, temperature=0.8, **schedule(name, SIZE))
    kind = "likely" if SCHEDULES.index(name) % 2 else "chain"
    made = both_ways([Request(prompt_of(9), params)], perfect, num_speculative_tokens=window, states=kind)
    assert made.totals.drafts_ahead == made.totals.rounds - 1


def test_a_perfect_draft_costs_no_forward_more():
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    counts = []
    for drafter in (perfect(), Ahead(perfect())):
        scheduler = engine(tiny_model(), SIZE, drafter, num_speculative_tokens=8, states="chain")
        decode(scheduler, [Request(prompt_of(8), params)])
        counts.append((scheduler.totals.draft_forwards, drafter.forwards))
    assert counts[0] == counts[1]


def test_a_useless_draft_model_drafts_for_nothing_and_that_counts():
    counts = []
    for drafter in (draft_model(USELESS), Ahead(draft_model(USELESS))):
        scheduler = engine(tiny_model(), SIZE, drafter, num_speculative_tokens=8, states="chain")
        (found,) = decode(scheduler, [Request(prompt_of(9), SamplingParams(max_tokens=40))])
        assert (scheduler.totals.accepted_tokens, scheduler.totals.drafts_ahead) == (0, 0)
        counts.append((found.stats.draft_forwards, found.stats.rounds))
    (in_time, rounds), (with_waste, again) = counts
    assert rounds == again
    assert in_time * 3 // 2 < with_waste <= 2 * in_time  # near the end the window is too short to go on


def test_all_of_a_batch_must_stand_where_they_were_expected():
    asked = [Request(prompt_of(9, seed), SamplingParams(max_tokens=24)) for seed in range(3)]
    scheduler = both_ways(asked, perfect, num_speculative_tokens=8, states="chain")
    assert scheduler.totals.drafts_ahead == scheduler.totals.rounds - 1  # all the same length, and all perfect


# ------------------------------------------------------------------ where a sequence will stand
def test_where_a_sequence_stands_after_some_steps_of_a_draft():
    now = Standing([1, 2], [3, MASK], 1, {"draft_stored": 2})
    tokens, steps = [[3, 4], [5, 6]], [[0, 1], [3, 2]]
    after = [now.after(tokens, steps, count, MASK) for count in range(4)]
    assert [(s.text_ids, s.block, s.taken, s.new) for s in after] == [
        ([1, 2], [3, MASK], 1, 0),
        ([1, 2, 3, 4], [MASK, MASK], 0, 0),
        ([1, 2, 3, 4], [MASK, 6], 1, 1),
        ([1, 2, 3, 4, 5, 6], [MASK, MASK], 0, 0),
    ]
    assert all(s.memory == now.memory and s.memory is not now.memory for s in after)


def test_a_standing_is_left_behind_by_its_sequence():
    sequence = Sequence(0, [1, 2, 3, 4, 5], SamplingParams(max_tokens=40), frozenset(), SIZE, MASK)
    now = Standing.of(sequence)
    assert now.agrees(sequence)
    sequence.put([[5, 6, 7, 8]], [[-1, 0, 1, 2]], None, 1, sequence.stored)
    assert not now.agrees(sequence)
    assert now.text_ids == [1, 2, 3, 4]
