"""What is drafted and verified where the engine chooses: any choice gives the same text, and it is a good one."""

from __future__ import annotations

import random
from collections.abc import Sequence as Many

import pytest

from simsd.engine.auto import MOST_BLOCKS, Auto, Choice
from simsd.engine.costs import CostTable
from simsd.engine.options import DecodingOptions, SamplingParams
from tests.drafting import make_drafter
from tests.integration.test_exactness import SAMPLERS, SCHEDULES, schedule, spoken
from tests.pairwise import pairwise
from tests.tiny import Request, decode, engine, prompt_of, submit, tiny_model

FLAT = CostTable((4, 256), (1.0, 1.0))  # rows cost nothing
STEEP = CostTable((4, 256), (0.004, 0.256))  # a forward costs nothing, its rows all


class Whims(Auto):
    """Any window and any number of states, changed from round to round."""

    def __init__(self, seed: int) -> None:
        super().__init__(lambda: FLAT, 4)
        self.chance = random.Random(seed)

    def blocks(self, sequences: int, fresh: bool, longest: int = MOST_BLOCKS) -> int:
        return min(self.chance.randrange(MOST_BLOCKS + 1), longest)

    def drafts(self, sequences: int) -> bool:
        return self.chance.random() < 0.5

    def choose(self, promise: Many[float], sequences: int, fresh: bool, blocks: int) -> int:
        return self.chance.randint(1, len(promise))


@pytest.mark.parametrize(
    "case",
    pairwise(
        {"schedule": SCHEDULES, "sampler": tuple(SAMPLERS), "size": (4, 8), "drafter": ("model", "hybrid", "self")}
    ),
    ids=lambda case: ", ".join(str(value) for value in case.values()),
)
def test_whatever_is_chosen_the_text_is_ordinary_decodings(case):
    target, name, sampler, size, kind = tiny_model(2), *case.values()
    params = [SamplingParams(max_tokens=n, seed=n, **schedule(name, size), **SAMPLERS[sampler]) for n in (19, 6, 25)]
    asked = [Request(prompt_of(length, length), p) for length, p in zip((size + 3, 2, 2 * size), params, strict=True)]
    expected = [decode(engine(target, size), [one])[0] for one in asked]
    drafter = make_drafter(kind, size, 2)
    found = decode(engine(target, size, drafter, max_num_seqs=2, auto=Whims(size)), asked)
    assert [spoken(s) for s in found] == [spoken(s) for s in expected]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", ["model", "hybrid"])
def test_a_draft_model_that_overflows_costs_no_text_and_no_end(kind, value):
    """It promises nothing, so that rounds soon are ordinary."""
    drafter = make_drafter(kind, 4, 2)
    hidden = drafter.forward.hidden
    drafter.forward.hidden = lambda *given, **named: hidden(*given, **named) * value
    asked = [Request(prompt_of(7), SamplingParams(max_tokens=60)), Request(prompt_of(2), SamplingParams(max_tokens=30))]
    expected = decode(engine(tiny_model(2), 4), asked)
    scheduler = engine(tiny_model(2), 4, drafter, auto=Auto(lambda: CostTable((4, 256), (1e-3, 0.256)), 4))
    submit(scheduler, asked)
    for _ in range(500):
        scheduler.step()
    assert not scheduler.busy
    assert [spoken(s) for s in decode(scheduler, asked)] == [spoken(s) for s in expected]


@pytest.mark.parametrize("kind", ["model", "hybrid", "self"])
def test_a_trace_goes_with_whatever_was_chosen(kind):
    """Also where the window is wide and nothing is drafted, as the target's own logits know nothing of a new block."""
    drafter = make_drafter(kind, 4, 2)
    asked = [Request(prompt_of(length, length), SamplingParams(max_tokens=21)) for length in (7, 8)]
    for one in decode(engine(tiny_model(2), 4, drafter, max_num_seqs=2, trace=True, auto=Whims(5)), asked):
        verdicts = [verdict for found in one.trace for verdict in found.verdict]
        assert verdicts.count("accepted") == one.stats.accepted_tokens
        assert len(one.trace) == one.stats.rounds


@pytest.mark.parametrize(
    ("given", "adaptive"),
    [
        ({}, True),
        ({"drafter": "self"}, True),
        ({"drafter": "lookup"}, False),  # says nothing of how sure it is
        ({"states": "chain"}, False),
        ({"num_speculative_tokens": 8}, False),
        ({"method": "simsd"}, False),  # its text may depend on the window, and must not depend on a clock
        ({"method": "exact-draft-order"}, False),
        ({"method": "none"}, False),
    ],
    ids=str,
)
def test_only_what_changes_no_text_is_left_to_the_clock(given, adaptive):
    assert DecodingOptions(**given).resolve(True).adaptive is adaptive


def world(auto: Auto, table: CostTable, draft: float, value: float, rounds: int = 400) -> tuple[float, list[int]]:
    """Tokens a second that the choices earn where a window's next state is worth `value` times the last one, its
    promises are kept, and drafting a block costs `draft` seconds; and the windows chosen."""
    tokens = seconds = 0.0
    chosen = []
    for _ in range(rounds):
        blocks = auto.blocks(1, True)
        promise = [value**i for i in range(4 * blocks)] if blocks else [1.0]
        count = auto.choose(promise, 1, True, blocks) if blocks else 1
        if blocks:
            auto.learn(1, True, [promise[: 4 * window] for window in range(1, blocks + 1)])
        walked = [sum(value**i for i in range(4 * w, min(4 * w + 4, count))) for w in range(max(blocks, 1))]
        rows = 4 * (count + max(blocks - 1, 0))
        spent = table(rows) + draft * blocks
        auto.observe(Choice(True, blocks, walked if blocks else []), 1, rows, spent, walked)
        tokens, seconds = tokens + sum(walked), seconds + spent
        chosen.append(blocks)
    return tokens / seconds, chosen


class Fixed(Auto):
    def __init__(self, table: CostTable, window: int, count: int) -> None:
        super().__init__(lambda: table, 4)
        self.window, self.count = window, count

    def blocks(self, sequences: int, fresh: bool, longest: int = MOST_BLOCKS) -> int:
        return min(self.window, longest)

    def choose(self, promise: Many[float], sequences: int, fresh: bool, blocks: int) -> int:
        return min(self.count, len(promise))


@pytest.mark.parametrize("draft", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("value", [0.2, 0.6, 0.9, 0.98])
@pytest.mark.parametrize("slope", [0.0, 0.02, 0.2])
def test_the_choice_is_within_a_twentieth_of_the_best_fixed_one(slope, value, draft):
    table = CostTable((4, 256), (1.0, 1.0 + 252 * slope))
    auto = Auto(lambda: table, 4)
    world(auto, table, draft, value, 50)
    earned, _ = world(auto, table, draft, value)
    fixed = [
        world(Fixed(table, window, count), table, draft, value)[0]
        for window in range(MOST_BLOCKS + 1)
        for count in range(1, 4 * max(window, 1) + 1)
    ]
    assert earned >= 0.95 * max(fixed)


def test_where_rows_are_all_the_cost_nothing_is_drafted():
    auto = Auto(lambda: STEEP, 4)
    _, chosen = world(auto, STEEP, 0.004, 0.5, 200)
    assert chosen[50:].count(0) > 140


def test_where_rows_are_free_all_states_are_verified():
    auto = Auto(lambda: FLAT, 4)
    assert auto.choose([1.0, 0.5, 0.1, 0.01], 1, True, 1) == 4


@pytest.mark.parametrize("draft", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("value", [0.05, 0.5])
def test_trying_again_costs_little_however_much_a_draft_costs(draft, value):
    table = CostTable((4, 256), (1.0, 1.5))
    auto = Auto(lambda: table, 4)
    world(auto, table, draft, value, 8)  # the first rounds, in which nothing is known yet
    earned, chosen = world(auto, table, draft, value, 6000)
    assert earned >= 0.97 * world(Fixed(table, 0, 1), table, draft, value)[0]
    assert sum(blocks > 0 for blocks in chosen) >= 1 or draft == 100.0


def test_what_was_given_up_is_tried_again():
    auto = Auto(lambda: STEEP, 4)
    world(auto, STEEP, 0.004, 0.05, 100)
    _, chosen = world(auto, FLAT, 0.0, 0.9, 200)  # drafts have become good, and the costs are as they were measured
    assert sum(blocks > 0 for blocks in chosen) >= 4


class Rough(Auto):
    """Each window makes a bad first impression, and some rounds take much longer than others."""

    def __init__(self, table: CostTable) -> None:
        super().__init__(lambda: table, 4)
        self.chance = random.Random(0)
        self.met: set[int] = set()

    def observe(self, choice: Choice, sequences: int, rows: int, seconds: float, visited: Many[float]) -> None:
        slow = 1.0 if choice.blocks in self.met else 6.0
        self.met.add(choice.blocks)
        slow *= 3.0 if self.chance.random() < 0.05 else self.chance.uniform(0.9, 1.1)
        super().observe(choice, sequences, rows, slow * seconds, visited)


def walks(auto: Auto, table: CostTable, draft: float, value: float, hope: float, rounds: int) -> float:
    """States a second where a walk goes on to the next state by chance, and the draft hopes for more than comes; the
    first block is known already, so that a window of one gains nothing."""
    chance = random.Random(1)
    visits = seconds = 0.0
    for _ in range(rounds):
        blocks = auto.blocks(1, True)
        promise = [1.0, *([0.01] * 3), *(hope ** (i + 1) for i in range(4 * (blocks - 1)))] if blocks else [1.0]
        order = sorted(range(len(promise)), key=lambda i: -promise[i])
        ranked = [promise[i] for i in order]
        count = auto.choose(ranked, 1, True, blocks) if blocks else 1
        if blocks:
            auto.learn(1, True, [sorted(promise[: 4 * n], reverse=True) for n in range(1, blocks + 1)])
        kept = {i for i in order[:count] if i > 3}
        walk = 0
        while walk + 4 in kept and chance.random() < value:
            walk += 1
        walked = [1, *(min(max(walk - 4 * w, 0), 4) for w in range(blocks - 1))]
        hoped = [1.0, *(sum(promise[i] for i in kept if i // 4 == w) for w in range(1, blocks))] if blocks else []
        rows = 4 * (count + max(blocks - 1, 0))
        spent = table(rows) + draft * blocks
        auto.observe(Choice(True, blocks, hoped), 1, rows, spent, walked)
        visits, seconds = visits + sum(walked), seconds + spent
    return visits / seconds


@pytest.mark.parametrize(("value", "hope"), [(0.3, 0.9), (0.7, 0.95), (0.95, 0.95)])
@pytest.mark.parametrize("draft", [0.1, 0.5])
@pytest.mark.parametrize("slope", [0.005, 0.05])
def test_first_impressions_vain_hopes_and_a_worse_window_in_between_do_not_last(slope, draft, value, hope):
    table = CostTable((4, 256), (1.0, 1.0 + 252 * slope))
    auto = Rough(table)
    walks(auto, table, draft, value, hope, 600)
    fixed = [
        walks(Fixed(table, window, count), table, draft, value, hope, 1000)
        for window in (0, 2, 3)
        for count in range(1, 1 + 4 * max(window - 1, 0) + 1)
    ]
    assert walks(auto, table, draft, value, hope, 2000) >= 0.95 * max(fixed)


class Priced(Auto):
    """Rounds of a real engine at a simulated price: rows cost a twentieth, a drafted block half an ordinary round."""

    def __init__(self, block_length: int) -> None:
        super().__init__(lambda: CostTable((4, 256), (1.0, 13.6)), block_length)
        self.asked: list[tuple[int, int, int]] = []

    def blocks(self, sequences: int, fresh: bool, longest: int = MOST_BLOCKS) -> int:
        self.asked.append((longest, super().blocks(sequences, fresh, longest), -1))
        return self.asked[-1][1]

    def observe(
        self,
        choice: Choice,
        sequences: int,
        rows: int,
        seconds: float,
        visited: Many[float],
        reading: float = 0.0,
    ) -> None:
        self.asked[-1] = (*self.asked[-1][:2], choice.blocks)
        super().observe(choice, sequences, rows, self.prepare()(rows) + 0.5 * choice.blocks, visited)


@pytest.mark.parametrize(("kind", "most"), [("model", MOST_BLOCKS), ("hybrid", MOST_BLOCKS), ("self", 1)])
@pytest.mark.parametrize("max_tokens", [4, 8, 24])
def test_what_no_request_or_drafter_reaches_is_not_asked_for(max_tokens, kind, most):
    """Drafts of another model's seed are useless: after a while hardly any are made, also where answers are short."""
    auto = Priced(4)
    scheduler = engine(tiny_model(2), 4, make_drafter(kind, 4, 9), max_num_seqs=1, auto=auto)
    for seed in range(240 // max_tokens):
        decode(scheduler, [Request(prompt_of(8, seed), SamplingParams(max_tokens=max_tokens))])
    assert {ran for _, asked, ran in auto.asked if asked != ran} == set()
    assert all(
        asked <= longest <= min(max_tokens // 4, most) or longest > MOST_BLOCKS for longest, asked, _ in auto.asked
    )
    late = auto.asked[len(auto.asked) // 3 :]
    assert sum(asked == 0 for _, asked, _ in late) >= 0.85 * len(late)
