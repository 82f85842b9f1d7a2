"""How far to draft, and how many states to verify: what promises the fastest decoding (method section 6).

Of the exact method alone, whose text depends on neither: it walks by the states of ordinary decoding, whatever is
drafted, and each state that it comes by is a forward saved. A round over a set of states S comes by

    sum of c v(s) over S  states in  T(query tokens of S) + overhead  seconds,

in expectation, where v(s) is the draft's own probability of a visit (`core.likelihood`), c what such promises were
worth so far in that block of the window (1 for the state at hand), T the measured cost of a forward, and the overhead
that of drafting, layout and acceptance. A window that has been run often enough counts by what it came to. Decoding as
a whole is fastest where each round maximises visits - pace * seconds, the pace being the visits a second that the
rounds come to (Dinkelbach 1967). Ordinary decoding is a window of no block, and comes by one state.
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
PROBE = 64  # rounds after which a window that seems worse is tried again at soonest
CURIOSITY = 0.002  # share of the time that such trials of a window may cost
SURE = 3  # rounds with a window after which its own overhead is believed
CAUTION = 0.03  # of the visits of a round that drafted, not counted: ordinary decoding is left for a clear gain alone
ENOUGH = 8  # rounds after which a window counts by what it came to, not by what was promised
MEMORY = 0.96  # of a running sum, a round
LONG_MEMORY = 0.995  # of what windows, or all rounds, came to
RECENT = 15  # rounds whose median is the overhead
LEAST = 0.01  # states that are less likely never pay


@dataclass
class Running:
    """A ratio of two decaying sums."""

    above: float = 0.0
    below: float = 0.0
    memory: float = MEMORY

    def add(self, above: float, below: float) -> None:
        self.above = self.memory * self.above + above
        self.below = self.memory * self.below + below

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
    """What is known of a window of some blocks.

    By promises, means over the `seen` rounds that drafted so far or further: states: how many of a sequence paid;
    visits: what these promised.
    By the `times` that just this window was run, the last one in round `ran`: visited, rows: of a sequence, a round;
    overhead: seconds beside the target's forward, the median of the newest rounds.
    """

    states: float = 1.0
    visits: float = 1.0
    seen: int = 0
    times: int = 0
    ran: int = 0
    visited: Running = field(default_factory=lambda: Running(memory=LONG_MEMORY))
    rows: Running = field(default_factory=lambda: Running(memory=LONG_MEMORY))
    overhead: float = math.inf
    _overheads: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def promise(self, states: int, visits: float) -> None:
        self.seen += 1
        new = max(1 / self.seen, 1 - MEMORY)
        self.states += new * (states - self.states)
        self.visits += new * (visits - self.visits)

    def run(self, now: int, visited: float, rows: float, overhead: float) -> None:
        self.times += 1
        self.ran = now
        self.visited.add(visited, 1.0)
        self.rows.add(rows, 1.0)
        self._overheads.append(max(overhead, 0.0))
        self.overhead = statistics.median_low(self._overheads)

    def expected(self, blocks: int, block_length: int) -> tuple[float, float]:
        """Visits and rows of a sequence in the next round with it."""
        rows = (self.states + max(blocks - 1, 0)) * block_length
        known = min(self.times / ENOUGH, 1.0)
        visits = self.visits + known * (self.visited.value - self.visits)
        return visits, rows + known * (self.rows.value - rows)


class Auto:
    """The running account of one scheduler. `costs` is asked for once, before the first round.

    Windows are told apart by whether a block is only beginning: then there are more states in it, and nobody has looked
    at it yet.
    """

    def __init__(self, costs: Callable[[], CostTable], block_length: int) -> None:
        self._costs = costs
        self._table: CostTable | None = None
        self.block_length = block_length
        self.worth = [Running(1.0, 1.0) for _ in range(MOST_BLOCKS)]
        self.pace = Running(memory=LONG_MEMORY)
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
        pace = self._pace(sequences, fresh)
        gains = {n: self._outlook(sequences, fresh, n, pace) for n in range(MOST_BLOCKS + 1)}
        known = [n for n in gains if n == 0 or self.windows[fresh, n].seen]
        best = max(known, key=lambda n: gains[n])
        usual, _ = self.windows[fresh, best].expected(best, self.block_length)
        for n in gains:
            loss = gains[best] - gains[n]
            wait = max(PROBE, loss / (CURIOSITY * usual))  # the more a trial costs, the more rarely
            if (n not in known and loss < 0) or (n != best and self.rounds - self.windows[fresh, n].ran >= wait):
                return n
        return best

    def choose(self, promise: Sequence[float], sequences: int, fresh: bool, blocks: int) -> int:
        """How many of the states to verify. promise: probability of a visit of a sequence's likeliest 1st, 2nd, 3rd ...
        state, the mean over the sequences."""
        pace, overhead = self._pace(sequences, fresh), self._overhead(fresh, blocks)
        best, most, total = 1, -float("inf"), 0.0
        for count, value in enumerate(promise, start=1):
            if value < LEAST and count > 1:
                break
            total += value
            rows = (count + max(blocks - 1, 0)) * self.block_length
            gain = _counted(total, blocks) - pace * self._seconds(rows, sequences, overhead)
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
            self.windows[fresh, n].promise(states, sum(promise[:states]))

    def observe(self, choice: Choice, sequences: int, rows: int, seconds: float, visited: Sequence[float]) -> None:
        """What a round came to. rows: of a sequence; visited: states of each block that the walks came by, over all
        sequences."""
        visits = sum(visited) / sequences
        if not visits:
            return
        self.pace.add(_counted(visits, choice.blocks), seconds)
        for at, (promised, found) in enumerate(zip(choice.promised, visited, strict=False)):
            certain = sequences if at == 0 else 0  # the states at hand
            if promised > certain:
                self.worth[at].add(max(found - certain, 0), promised - certain)
        overhead = seconds - self.prepare()(sequences * rows)
        self.windows[choice.fresh, choice.blocks].run(self.rounds, visits, rows, overhead)

    def _outlook(self, sequences: int, fresh: bool, blocks: int, pace: float) -> float:
        """Visits of a sequence in a round beyond what its time is worth at this pace; of a window that was never looked
        at, the most that can be hoped for."""
        window, most = self.windows[fresh, blocks], blocks * self.block_length
        known = window.seen or blocks == 0
        visits, rows = window.expected(blocks, self.block_length) if known else (most, most)
        seconds = self._seconds(rows, sequences, self._overhead(fresh, blocks))
        return _counted(visits, blocks) - pace * seconds

    def _pace(self, sequences: int, fresh: bool) -> float:
        """Visits a second, of a sequence: those of the rounds so far, or of ordinary decoding where that is faster. At
        too slow a pace long rounds look better than they are."""
        _, rows = self.windows[fresh, 0].expected(0, self.block_length)
        return max(self.pace.value, 1 / self._seconds(rows, sequences, self._overhead(fresh, 0)))

    def _seconds(self, rows: float, sequences: int, overhead: float) -> float:
        return self.prepare()(round(sequences * rows)) + overhead

    def _overhead(self, fresh: bool, blocks: int) -> float:
        """Of a window that was hardly run yet, at most that of the nearest one, in proportion: one slow round is no
        reason to leave it."""
        window = self.windows[fresh, blocks]
        if window.times >= SURE:
            return window.overhead
        others = {key: other for key, other in self.windows.items() if other.times and other is not window}
        if not others:
            return window.overhead if window.times else 0.0
        near = min(others, key=lambda key: (abs(key[1] - blocks), key[0] != fresh))
        return min(window.overhead, others[near].overhead * (blocks + 1) / (near[1] + 1))


def _counted(visits: float, blocks: int) -> float:
    return visits * (1 - CAUTION) if blocks else visits
