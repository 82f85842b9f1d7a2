"""How far to draft, and how many states to verify: what promises the most tokens a second (method section 6).

Of the exact method alone, whose text depends on neither. A round over a set of states S brings, in expectation,

    r (1 + c (sum of v(s) over S - 1))  tokens in  T(query tokens of S) + overhead(blocks drafted)  seconds,

where v(s) is the draft's own probability that the walk comes by s (`core.likelihood`), c what these were worth so far,
r the tokens that a visited state reveals, and T the measured cost of a forward. Ordinary decoding is a window of none.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from simsd.engine.costs import CostTable

MOST_BLOCKS = 3
FIRST = (2, 2, 0)  # windows of the first rounds: without an ordinary one its overhead would be a guess
PROBE = 48  # rounds after which a longer window, or any where drafting seemed not to pay, is tried again
MEMORY = 0.96  # of a running sum, a round
RECENT = 15  # rounds whose median is the overhead


@dataclass
class Running:
    """A ratio of two decaying sums, with a beginning that counts as `weight` of the second."""

    above: float
    below: float

    def add(self, above: float, below: float) -> None:
        self.above = MEMORY * self.above + above
        self.below = MEMORY * self.below + below

    @property
    def value(self) -> float:
        return self.above / max(self.below, 1e-9)


@dataclass(frozen=True)
class Choice:
    """A round's set: the number of states of each sequence, and the visits that they promise, per sequence."""

    states: int
    visits: float


class Auto:
    """The running account of one scheduler. `costs` is asked for once, at the first round.

    seen: for each window in blocks, the mean promise of the best 1, 2, 3 ... states of a sequence.
    """

    def __init__(self, costs: Callable[[], CostTable], block_length: int) -> None:
        self._costs = costs
        self._table: CostTable | None = None
        self.block_length = block_length
        self.reveals = Running(1.0, 1.0)
        self.worth = Running(1.0, 1.0)
        self.overheads: dict[int, deque[float]] = {}
        self.promises: dict[int, list[float]] = {}
        self.rounds = 0
        self._tried: dict[int, int] = {}

    def prepare(self) -> CostTable:
        """Asks for the costs, if that has not been done: it may measure, which is no round's time."""
        if self._table is None:
            self._table = self._costs()
        return self._table

    def blocks(self, sequences: int) -> int:
        """The window of the next round; 0 is ordinary decoding."""
        self.rounds += 1
        if self.rounds <= len(FIRST):
            return FIRST[self.rounds - 1]
        rates = {blocks: self._rate(blocks, curve, sequences) for blocks, curve in self.promises.items()}
        rates[0] = self._rate(0, [1.0], sequences)
        best = max(rates, key=lambda blocks: rates[blocks])
        longer = min(best + 1, MOST_BLOCKS)
        if self.rounds - self._tried.get(longer, -PROBE) >= PROBE:
            return longer
        return best

    def choose(self, visits: Sequence[float], sequences: int, blocks: int) -> Choice:
        """How many of the states to verify. visits: v of the likeliest 1st, 2nd ... state, mean over the sequences."""
        best, best_rate, total = Choice(1, 1.0), 0.0, 0.0
        for count, value in enumerate(visits, start=1):
            total += value
            rate = self._tokens(total) / self._seconds(sequences, count, blocks)
            if rate > best_rate:
                best, best_rate = Choice(count, total), rate
        return best

    def learn(self, blocks: int, curves: Sequence[Sequence[float]]) -> None:
        """curves[w - 1]: as `visits` of `choose`, for the states of the first w blocks of this round's draft."""
        for window, values in enumerate(curves, start=1):
            known = self.promises.setdefault(window, list(values))
            mixed = zip_longest(known, values, fillvalue=0.0)  # blocks with fewer masks have fewer states
            self.promises[window] = [MEMORY * old + (1 - MEMORY) * new for old, new in mixed]
        for window in range(1, blocks + 1):
            self._tried[window] = self.rounds

    def observe(
        self,
        blocks: int,
        choice: Choice | None,
        sequences: int,
        rows: int,
        seconds: float,
        visited: float,
        tokens: float,
    ) -> None:
        """What a round came to. visited: states that the walks came by; tokens: committed; both over all sequences."""
        if visited == 0:
            return
        self.reveals.add(tokens, visited)
        if choice is not None and choice.visits > 1:
            self.worth.add(max(visited - sequences, 0), sequences * (choice.visits - 1))
        extra = seconds - self._cost(sequences * rows)
        self.overheads.setdefault(blocks, deque(maxlen=RECENT)).append(max(extra, 0.0))

    def _rate(self, blocks: int, curve: Sequence[float], sequences: int) -> float:
        choice = self.choose(curve, sequences, blocks)
        return self._tokens(choice.visits) / self._seconds(sequences, choice.states, blocks)

    def _tokens(self, visits: float) -> float:
        return self.reveals.value * (1 + self.worth.value * (visits - 1))

    def _seconds(self, sequences: int, states: int, blocks: int) -> float:
        copies = states + max(blocks - 1, 0)
        return self._cost(sequences * copies * self.block_length) + self._overhead(blocks)

    def _cost(self, rows: int) -> float:
        return self.prepare()(rows)

    def _overhead(self, blocks: int) -> float:
        """Draft, plan and accept; for a window not tried yet as the nearest one in proportion."""
        if blocks in self.overheads:
            return statistics.median(self.overheads[blocks])
        if not self.overheads:
            return 0.0
        near = min(self.overheads, key=lambda known: abs(known - blocks))
        scale = (blocks + 1) / (near + 1)
        return statistics.median(self.overheads[near]) * scale
