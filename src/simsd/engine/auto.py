"""How far to draft, and how many states to verify: what promises the most tokens a second (method section 6).

Of the exact method alone, whose text depends on neither. A round over a set of states S brings, in expectation,

    r (sum of c v(s) over S)  tokens in  T(query tokens of S) + overhead  seconds,

where v(s) is the draft's own probability that the walk comes by s (`core.likelihood`), c what such promises were worth
so far in that block of the window (1 for the state at hand), r the tokens that a visited state reveals, T the measured
cost of a forward, and the overhead that of drafting, layout and acceptance. Decoding as a whole is fastest where each
round maximises tokens - pace * seconds, the pace being the tokens a second that the rounds come to (Dinkelbach 1967).
Ordinary decoding is a window of no block.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from simsd.engine.costs import CostTable

MOST_BLOCKS = 3
FIRST = (1, 1, 0)  # windows of the first rounds: without an ordinary one its overhead would be a guess
PROBE = 64  # rounds after which a longer window, or any where drafting seemed not to pay, is tried again at soonest
CURIOSITY = 0.01  # share of the tokens that such trials may cost
MEMORY = 0.96  # of a running sum, a round
RECENT = 15  # rounds whose median is the overhead
LEAST = 0.01  # states that are less likely never pay


@dataclass
class Running:
    """A ratio of two decaying sums."""

    above: float
    below: float

    def add(self, above: float, below: float) -> None:
        self.above = MEMORY * self.above + above
        self.below = MEMORY * self.below + below

    @property
    def value(self) -> float:
        return self.above / self.below if self.below else 0.0


@dataclass(frozen=True)
class Choice:
    """A round's set of states: for a fresh block or not, over so many blocks; promised: the sum of v over the states of
    each block and over all sequences."""

    fresh: bool
    blocks: int
    promised: list[float]


@dataclass(frozen=True)
class Foreseen:
    """A choice made before there is a draft, for a round in which the host is not to wait for one.

    states: how many to verify. trust: [blocks] as `Auto.trust`, on the device.
    """

    states: int
    trust: Tensor


@dataclass
class Window:
    """What is known of a window of some blocks: means over the rounds that drafted so far or further.

    states: how many states of a sequence paid; visits: what these promised; seen: in how many rounds; tried: the newest
    of them. overhead: seconds beside the target's forward, median of the newest rounds with just this window.
    """

    states: float = 1.0
    visits: float = 1.0
    seen: int = 0
    tried: int | None = None
    overhead: float | None = None
    _overheads: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def learn(self, states: int, visits: float) -> None:
        self.seen += 1
        new = max(1 / self.seen, 1 - MEMORY)
        self.states += new * (states - self.states)
        self.visits += new * (visits - self.visits)

    def spent(self, seconds: float) -> None:
        self._overheads.append(max(seconds, 0.0))
        self.overhead = statistics.median(self._overheads)


class Auto:
    """The running account of one scheduler. `costs` is asked for once, before the first round.

    Windows are told apart by whether a block is only beginning: then there are more states in it, and nobody has looked
    at it yet.
    """

    def __init__(self, costs: Callable[[], CostTable], block_length: int) -> None:
        self._costs = costs
        self._table: CostTable | None = None
        self.block_length = block_length
        self.reveals = Running(1.0, 1.0)
        self.worth = [Running(1.0, 1.0) for _ in range(MOST_BLOCKS)]
        self.pace = Running(0.0, 0.0)
        self.windows = {(fresh, n): Window() for fresh in (False, True) for n in range(MOST_BLOCKS + 1)}
        self.rounds = 0

    def prepare(self) -> CostTable:
        """Asks for the costs, if that has not been done: it may measure, which the scheduler does before any clock."""
        if self._table is None:
            self._table = self._costs()
        return self._table

    @property
    def trust(self) -> list[float]:
        """c, for each block of a window."""
        return [min(worth.value, 1.0) for worth in self.worth]

    def blocks(self, sequences: int, fresh: bool) -> int:
        """The window of the next round; 0 is ordinary decoding. fresh: a sequence is at the beginning of its block."""
        self.rounds += 1
        if self.rounds <= len(FIRST):
            return FIRST[self.rounds - 1]
        gains = {
            n: self._gain(window.states, window.visits, sequences, fresh, n)
            for (when, n), window in self.windows.items()
            if when == fresh and (window.seen or n == 0)
        }
        best = max(gains, key=lambda n: gains[n])
        longer = min(best + 1, MOST_BLOCKS)
        tried = self.windows[fresh, longer].tried
        if tried is None:
            return longer
        usual = self.reveals.value * self.windows[fresh, best].visits
        wait = (gains[best] - gains[longer]) / (CURIOSITY * usual)  # the more a trial costs, the more rarely
        return longer if self.rounds - tried >= max(PROBE, wait) else best

    def choose(self, promise: Sequence[float], sequences: int, fresh: bool, blocks: int) -> int:
        """How many of the states to verify. promise: probability of a visit of a sequence's likeliest 1st, 2nd, 3rd ...
        state, the mean over the sequences."""
        overhead = self._overhead(fresh, blocks)
        best, most, total = 1, -float("inf"), 0.0
        for count, value in enumerate(promise, start=1):
            if value < LEAST and count > 1:
                break
            total += value
            gain = self._gain(count, total, sequences, fresh, blocks, overhead)
            if gain > most:
                best, most = count, gain
        return best

    def foresee(self, fresh: bool, blocks: int) -> int:
        """How many states to verify, before the draft is known: what paid so far, to a power of two, so that few graphs
        serve all rounds. At first a state a token."""
        window = self.windows[fresh, blocks]
        usual = window.states if window.seen else blocks * self.block_length
        return 1 << round(math.log2(usual))

    def learn(self, sequences: int, fresh: bool, promises: Sequence[Sequence[float]]) -> None:
        """promises[w - 1]: as in `choose`, of the states in the first w blocks of this round's draft."""
        for n, promise in enumerate(promises, start=1):
            states = self.choose(promise, sequences, fresh, n)
            self.windows[fresh, n].learn(states, sum(promise[:states]))
            self.windows[fresh, n].tried = self.rounds

    def observe(
        self,
        choice: Choice,
        sequences: int,
        rows: int,
        seconds: float,
        visited: Sequence[float],
        tokens: float,
    ) -> None:
        """What a round came to. visited: states of each block that the walks came by; tokens: committed; both over all
        sequences."""
        if not sum(visited):
            return
        self.reveals.add(tokens, sum(visited))
        self.pace.add(tokens / sequences, seconds)
        for at, (promised, found) in enumerate(zip(choice.promised, visited, strict=False)):
            certain = sequences if at == 0 else 0  # the states at hand
            if promised > certain:
                self.worth[at].add(max(found - certain, 0), promised - certain)
        self.windows[choice.fresh, choice.blocks].spent(seconds - self.prepare()(sequences * rows))

    def _gain(
        self,
        states: float,
        visits: float,
        sequences: int,
        fresh: bool,
        blocks: int,
        overhead: float | None = None,
    ) -> float:
        """Tokens of a sequence beyond what its time is worth at the pace so far. visits: expected, of a sequence."""
        rows = round(sequences * (states + max(blocks - 1, 0)) * self.block_length)
        seconds = self.prepare()(rows) + (self._overhead(fresh, blocks) if overhead is None else overhead)
        return self.reveals.value * visits - self.pace.value * seconds

    def _overhead(self, fresh: bool, blocks: int) -> float:
        """Of a window that was not tried yet as of the nearest one, in proportion."""
        own = self.windows[fresh, blocks].overhead
        if own is not None:
            return own
        known = {key: window.overhead for key, window in self.windows.items() if window.overhead is not None}
        if not known:
            return 0.0
        near = min(known, key=lambda key: (abs(key[1] - blocks), key[0] != fresh))
        return known[near] * (blocks + 1) / (near[1] + 1)
