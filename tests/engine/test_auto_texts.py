"""Decoding over simulated texts, on a simulated clock: auto is never far behind the best fixed window."""

from __future__ import annotations

import random
from collections.abc import Sequence as Many

import pytest

from simsd.engine.auto import MOST_BLOCKS, Auto, Choice
from simsd.engine.costs import CostTable

Phase = tuple[float, float, int]
"""Tokens of each sequence, value of a step, sequences."""


def texts(auto: Auto, phases: Many[Phase], slope: float, draft: float, *, hope: float | None = None, seed: int = 0):
    """States a second of a sequence in each phase, where a walk goes on by chance, as often as drafts say; or they say
    `hope`, whatever comes. Rows cost `slope` beside the first ones, a drafted block `draft` of an ordinary round."""
    chance, table = random.Random(seed), auto.prepare()
    rates = []
    for tokens, value, sequences in phases:
        visits = seconds = 0.0
        while visits < tokens:
            blocks = auto.blocks(sequences, True)
            said = [(hope or value) ** i for i in range(4 * max(blocks, 1))]
            promise = [v if i == 0 else v * auto.trust[i // 4] for i, v in enumerate(said)]
            count = auto.choose(promise, sequences, True, blocks) if blocks else 1
            if blocks:
                auto.learn(sequences, True, [promise[: 4 * n] for n in range(1, blocks + 1)])
            walked = [0] * max(blocks, 1)
            for _ in range(sequences):
                walk = 1
                while walk < count and chance.random() < value:
                    walk += 1
                for i in range(walk):
                    walked[i // 4] += 1
            rows = 4 * (count + max(blocks - 1, 0))
            hoped = [sequences * sum(said[4 * w : min(4 * w + 4, count)]) for w in range(blocks)]
            spent = table(rows * sequences) + draft * blocks * (1 + 4 * slope * (sequences - 1))
            auto.observe(Choice(True, blocks, hoped), sequences, rows, spent, walked)
            visits, seconds = visits + sum(walked) / sequences, seconds + spent
        rates.append(visits / seconds)
    return rates


def sloped(slope: float) -> CostTable:
    return CostTable((4, 1024), (1.0, 1.0 + 1020 * slope))


def whole(phases: Many[Phase], rates: Many[float]) -> float:
    return sum(tokens for tokens, *_ in phases) / sum(p[0] / rate for p, rate in zip(phases, rates, strict=True))


def rate_of(window: int, count: int, value: float, slope: float, draft: float, sequences: int = 1) -> float:
    """What `texts` come to on average with a fixed window and number of states; window 0 is ordinary decoding."""
    rows = 4 * (count + max(window - 1, 0)) * sequences
    spent = sloped(slope)(rows) + draft * window * (1 + 4 * slope * (sequences - 1))
    return sum(value**i for i in range(count)) / spent


def best_of(phases: Many[Phase], slope: float, draft: float) -> float:
    """The states a second over all phases of the best fixed window and number of states."""
    ways = [(w, count) for w in range(MOST_BLOCKS + 1) for count in range(1, 4 * w + 1 if w else 2)]
    return max(
        whole(phases, [rate_of(*way, value, slope, draft, sequences) for _, value, sequences in phases]) for way in ways
    )


COSTS = [(0.005, 0.1), (0.02, 0.3), (0.02, 0.7), (0.05, 0.3)]


@pytest.mark.parametrize(("slope", "draft"), COSTS)
@pytest.mark.parametrize("hope", [None, 0.9])
def test_texts_that_change_are_followed(hope, slope, draft):
    """Good drafts, bad ones, good ones again: nowhere far behind ordinary decoding, and as a whole ahead of every fixed
    window. Drafts that do not know how good they are cost more."""
    phases = [(1000, 0.95, 1), (1000, 0.05, 1)] * 2
    best, found = best_of(phases[:1], slope, draft), []
    for seed in range(4):
        found.append(texts(Auto(lambda: sloped(slope), 4), phases, slope, draft, hope=hope, seed=seed))
        assert whole(phases, found[-1]) >= best_of(phases, slope, draft)
        assert all(rate >= (0.9 if hope else 0.93) for rate in found[-1])  # ordinary decoding comes to 1
    assert all(sum(rates[at] for rates in found) / 4 >= (0.9 if hope else 0.95) for at in (1, 3))
    assert all(sum(rates[at] for rates in found) / 4 >= (0.7 if hope else 0.88) * best for at in (0, 2))


@pytest.mark.parametrize(("slope", "draft"), COSTS)
@pytest.mark.parametrize(("high", "low"), [(0.9, 0.3), (0.8, 0.2)])
def test_also_texts_of_a_few_hundred_tokens(high, low, slope, draft):
    phases = [(256, high, 1), (256, low, 1)] * 4
    rates = texts(Auto(lambda: sloped(slope), 4), phases, slope, draft)
    assert whole(phases, rates) >= 0.95 * best_of(phases, slope, draft)


@pytest.mark.parametrize(("slope", "draft", "value"), [(0.1, 0.3, 0.8), (0.02, 0.7, 0.8), (0.05, 0.3, 0.7)])
def test_an_unlucky_beginning_does_not_last(slope, draft, value):
    best = best_of([(1000, value, 1)], slope, draft)
    late = []
    for seed in range(6):
        phases = [(500, value, 1), (1000, value, 1)]
        late.append(texts(Auto(lambda: sloped(slope), 4), phases, slope, draft, seed=seed)[1] / best)
    assert sum(late) / len(late) >= 0.95
    assert min(late) >= 0.9  # chance plays in


@pytest.mark.parametrize(("slope", "draft"), [(0.1, 0.3), (0.02, 0.7), (0.02, 0.3)])
def test_a_large_batch_says_nothing_of_a_small_one(slope, draft):
    """Where rows cost, drafts pay for a sequence alone and not for sixteen."""
    phases = [(100, 0.8, 16), (500, 0.8, 1)] * 2
    best = [best_of([phase], slope, draft) for phase in phases]
    found = [texts(Auto(lambda: sloped(slope), 4), phases, slope, draft, seed=seed) for seed in range(4)]
    shares = [rates[at] / best[at] for rates in found for at in (1, 3)]
    assert sum(shares) / len(shares) >= 0.93
    assert min(shares) >= 0.8  # chance plays in


class Clocked(Auto):
    """A clock that once in a while says something else."""

    def __init__(self, table: CostTable, odd: float) -> None:
        super().__init__(lambda: table, 4)
        self.odd = odd

    def observe(self, choice: Choice, sequences: int, rows: int, seconds: float, visited: Many[float]) -> None:
        seconds = seconds * self.odd if self.rounds % 100 == 50 else seconds
        super().observe(choice, sequences, rows, seconds, visited)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 1e-6, 1e4])
@pytest.mark.parametrize("value", [0.3, 0.9])
def test_a_clock_that_stalls_or_is_set_costs_nothing(value, odd):
    phases = [(500, value, 1)]
    usual = texts(Auto(lambda: sloped(0.02), 4), phases, 0.02, 0.3)
    assert whole(phases, texts(Clocked(sloped(0.02), odd), phases, 0.02, 0.3)) >= 0.95 * whole(phases, usual)


@pytest.mark.parametrize(("slope", "draft", "value"), [(0.05, 0.4, 0.8), (0.02, 0.7, 0.6), (0.1, 0.3, 0.5)])
def test_what_was_measured_on_a_slower_machine_does_not_last(slope, draft, value):
    """What a window took long ago, while the machine was slower, says nothing of it now."""

    class Slowed(Auto):
        slow = 1.0

        def observe(self, choice: Choice, sequences: int, rows: int, seconds: float, visited: Many[float]) -> None:
            super().observe(choice, sequences, rows, self.slow * seconds, visited)

    late = []
    for seed in range(3):
        auto = Slowed(lambda: sloped(slope), 4)
        for auto.slow in (1.0, 1.6, 1.0, 0.7):
            rate = texts(auto, [(1500, value, 1), (1500, value, 1)], slope, draft, seed=seed)[1]
        late.append(rate / best_of([(1500, value, 1)], slope, draft))
    assert sum(late) / len(late) >= 0.95


@pytest.mark.parametrize(("slope", "draft", "value"), [(0.02, 0.7, 0.6), (0.05, 0.5, 0.7), (0.05, 0.3, 0.6)])
def test_moments_in_which_all_is_slow_say_nothing_of_a_window(slope, draft, value):
    """Whichever happens to run then: the others would have been as slow. What is earned counts on the usual clock."""

    class Bursts(Auto):
        left = 0

        def observe(self, choice: Choice, sequences: int, rows: int, seconds: float, visited: Many[float]) -> None:
            if not self.left and chance.random() < 0.01:
                self.left = chance.randrange(40)
            self.left = max(self.left - 1, 0)
            super().observe(choice, sequences, rows, seconds * (1.5 if self.left else 1.0), visited)

    late = []
    for seed in range(3):
        chance = random.Random(seed)
        rates = texts(Bursts(lambda: sloped(slope), 4), [(400, value, 1), (1500, value, 1)], slope, draft, seed=seed)
        late.append(rates[1] / best_of([(1500, value, 1)], slope, draft))
    assert sum(late) / len(late) >= 0.95


@pytest.mark.parametrize("reading", [0.0, 1.0, 5.0])
def test_trials_for_which_much_has_to_be_read_are_the_rarer(reading):
    """Where drafts are good for nothing, and the drafter has to catch up for each."""

    class Reader(Auto):
        def observe(self, choice: Choice, sequences: int, rows: int, seconds: float, visited: Many[float]) -> None:
            spent.append(reading if choice.blocks else 0.0)
            super().observe(choice, sequences, rows, seconds, visited, spent[-1])

    spent: list[float] = []
    auto = Reader(lambda: sloped(0.05), 4)
    texts(auto, [(500, 0.05, 1)], 0.05, 0.3)
    spent.clear()
    texts(auto, [(5000, 0.05, 1)], 0.05, 0.3)
    assert sum(spent) <= 0.03 * len(spent) + reading


@pytest.mark.parametrize("reading", [100.0, 1e9, float("inf"), float("nan")])
def test_one_long_reading_ends_no_trials(reading):
    class Reader(Auto):
        left = 1

        def observe(self, choice: Choice, sequences: int, rows: int, seconds: float, visited: Many[float]) -> None:
            first, self.left = self.left if choice.blocks else 0, self.left - bool(choice.blocks)
            super().observe(choice, sequences, rows, seconds, visited, reading if first > 0 else 0.0)

    auto = Reader(lambda: sloped(0.02), 4)
    auto.left = 0
    texts(auto, [(500, 0.05, 1)], 0.02, 0.3)
    auto.left = 1
    texts(auto, [(500, 0.05, 1), (4000, 0.95, 1)], 0.02, 0.3)
    assert texts(auto, [(1000, 0.95, 1)], 0.02, 0.3)[0] >= 0.9 * best_of([(1000, 0.95, 1)], 0.02, 0.3)


@pytest.mark.parametrize("table", [CostTable((4,), (0.0,)), CostTable((4, 8), (0.0, 1e-12))])
@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-12])
def test_where_nothing_takes_time_there_is_still_a_choice(table, seconds):
    auto = Auto(lambda: table, 4)
    for _ in range(200):
        blocks = auto.blocks(1, True)
        auto.learn(1, True, [[1.0, 0.5]] * blocks)
        auto.observe(Choice(True, blocks, [1.5] * blocks), 1, 8, seconds, [2])
        assert 0 <= blocks <= MOST_BLOCKS


def test_a_draft_of_no_numbers_is_forgotten():
    phases = [(500, 0.9, 1)]
    auto = Auto(lambda: sloped(0.02), 4)
    nothing = [float("nan")] * 4
    auto.learn(1, True, [nothing, nothing])
    auto.observe(Choice(True, 2, [float("nan")] * 2), 1, 8, 1.0, [1])
    assert texts(auto, phases, 0.02, 0.3) >= [0.9 * best_of(phases, 0.02, 0.3)]


@pytest.mark.parametrize("value", [0.05, 0.6, 0.9])
@pytest.mark.parametrize("factor", [0.3, 3.0, 10.0])
def test_a_table_that_is_wrong_heals(factor, value):
    """As if it had been measured while the machine was busy, or the machine had become so."""
    table, wrong = sloped(0.02), CostTable((4, 1024), (factor, factor * (1 + 1020 * 0.02)))

    class Wrong(Auto):
        def observe(self, choice: Choice, sequences: int, rows: int, seconds: float, visited: Many[float]) -> None:
            spent.append((sum(visited), right := seconds - wrong(rows) + table(rows)))
            super().observe(choice, sequences, rows, right, visited)

    spent: list[tuple[float, float]] = []
    texts(Wrong(lambda: wrong, 4), [(1000, value, 1)], 0.02, 0.3)
    best = best_of([(1000, value, 1)], 0.02, 0.3)
    rate = sum(found for found, _ in spent) / sum(seconds for _, seconds in spent)
    assert rate >= 0.9 * best
