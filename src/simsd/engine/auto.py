"""How far to draft, and how many states to verify: what promises the fastest decoding (method section 6).

Of the exact method alone, whose text depends on neither: it walks by the states of ordinary decoding, whatever is
drafted, and each state that it comes by is a forward saved. A round over a set of states S comes by

    sum of c v(s) over S  states in  T(query tokens of S) + overhead  seconds,

in expectation, where v(s) is the draft's own probability of a visit (`core.likelihood`), c what such promises were
worth so far in that block of the window (1 for the state at hand), T the measured cost of a forward, and the overhead
what a round takes beside it: drafting, layout, acceptance. Decoding as a whole is fastest where each round maximises
visits - pace * seconds, the pace being the visits a second that the best windows come to (Dinkelbach 1967). Ordinary
decoding is a window of no block, and comes by one state.

A window counts by what the newest drafts promise, which changes with the text, times what such promises came to in
rounds with it, which hardly does. One that seems worse is tried again now and then, for a small share of the time.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from simsd.engine.clock import Clock
from simsd.engine.costs import CostTable
from simsd.engine.level import Level

MOST_BLOCKS = 3
FIRST = (1, 1, 0)  # windows of the first rounds: without an ordinary one its overhead would be a guess
PROBE = 32  # rounds between trials of windows that seem worse, at least
CURIOSITY = 0.015  # share of the time that such trials may cost
WEARY = 0.8  # of that share, after each trial that changed nothing
LEAST_CURIOUS = 0.5  # of that share, whatever the trials say
CLEAR = 0.2  # of the visits of a round, that the best window is ahead
HELD = 4  # rounds, until a window that is no trial is thought over: thinking takes time too
DEBT = 10.0  # visits that trials may have cost beyond what was saved for them, at most: one was enough to learn from
SURE = 8  # rounds with a window after which its own overhead is believed
CAUTION = 0.03  # of the visits of a round that drafted, not counted: ordinary decoding is left for a clear gain alone
QUICK = 0.002  # drift of what drafts promise: the newest 25 rounds count
SLOW = 0.0001  # drift of what promises come to: the newest 100
ALARM = 8.0  # of what promises come to (`Level.alarm`)
TOPIC = 20.0  # of what drafts promise: it goes up and down from one question to the next, and leaving a window is dear
HONEST = 1 / 20  # doubt about that at first: drafts are taken at their word
MEMORY = 0.998  # of what drafts were worth, a round
TRUSTED = 8.0  # states that drafts are believed to have promised well, beyond what is known
OFTEN = 0.04  # of the share of fresh blocks, a round
USUAL = 30  # rounds with a window whose median is its overhead
LEAST = 0.01  # states that are less likely never pay


class Worth:
    """What promises of states came to, by sums that decay from round to round: to honesty, where nobody looks."""

    def __init__(self) -> None:
        self.found = self.promised = TRUSTED

    def add(self, found: float, promised: float, rounds: int) -> None:
        """So many rounds after the last promise."""
        self.found = self._faded(self.found, rounds) + found
        self.promised = self._faded(self.promised, rounds) + promised

    def value(self, rounds: int) -> float:
        """So many rounds after the last promise."""
        return min(self._faded(self.found, rounds) / self._faded(self.promised, rounds), 1.0)

    def _faded(self, count: float, rounds: int) -> float:
        return TRUSTED + MEMORY**rounds * (count - TRUSTED)


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
    """What is known of a window of some blocks: of a sequence, a round.

    By the rounds that drafted so far or further, the last one `seen`: states: how many paid; visits: what these
    promised. By the `times` that just this window was run, the last one in round `ran`: kept: visits beside those
    promised; laid: rows beside those of the states that paid; overhead: seconds beside the target's forward, the median
    of the newest rounds.
    """

    blocks: int
    states: Level = field(default_factory=lambda: Level(1.0, drift=QUICK, alarm=TOPIC))
    visits: Level = field(default_factory=lambda: Level(1.0, drift=QUICK, alarm=TOPIC))
    seen: int = 0
    kept: Level = field(default_factory=lambda: Level(1.0, HONEST, drift=SLOW, alarm=ALARM))
    laid: Level = field(default_factory=lambda: Level(1.0, HONEST, drift=SLOW))
    times: int = 0
    ran: int = 0
    overhead: float = math.inf
    _newest: tuple[int, float] = (1, 1.0)
    _overheads: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL))

    @property
    def known(self) -> bool:
        return self.blocks == 0 or self.visits.known

    def promise(self, now: int, states: int, visits: float) -> bool:
        """True if promises have become better."""
        self._newest = states, visits
        pause, self.seen = now - self.seen, now
        self.states.add(states, pause)
        return self.visits.add(visits, pause)

    def run(self, now: int, visits: float, rows: float) -> bool:
        """True if promises come to more than they did."""
        states, promised = self._newest
        pause, self.ran = now - self.ran, now
        self.times += 1
        self.laid.add(rows / self._rows(states), pause)
        return self.kept.add(visits / promised, pause)

    def took(self, overhead: float) -> None:
        self._overheads.append(overhead)
        self.overhead = statistics.median_low(self._overheads)

    def forget(self) -> None:
        """What was promised is no more to be believed."""
        self.states.forget()
        self.visits.forget()

    def elsewhere(self) -> Window:
        """What is known for batches of another size: another number of states pays there."""
        other = copy.deepcopy(self)
        other.forget()
        other.times = 0
        other._overheads.clear()
        return other

    def expected(self) -> tuple[float, float]:
        """Visits, and rows in blocks, of the next round with it."""
        return self.visits.value * self.kept.value, self._rows(self.states.value) * self.laid.value

    def _rows(self, states: float) -> float:
        return states + max(self.blocks - 1, 0)


class Batches:
    """What is known for batches of about the same size.

    best: the window that seems best, for a fresh block or not; fresh: share of rounds with a fresh one; pace: in visits
    a second, of a sequence; saved: what trials may cost by now, in visits; curious: of the usual share; tried: the
    round of the last one; waited: rounds since the window was thought over; quiet: the best was clearly so then, a
    trial had said it too, and no other was due.
    """

    def __init__(self) -> None:
        self.windows = {(fresh, n): Window(n) for fresh in (False, True) for n in range(MOST_BLOCKS + 1)}
        self.best = {False: 0, True: 0}
        self.fresh: float | None = None
        self.pace = 0.0
        self.saved = {False: 0.0, True: 0.0}
        self.curious = 1.0
        self.waited = {False: 0, True: 0}
        self.quiet = {False: False, True: False}
        self.tried = 0
        self.rounds = 0

    def begin(self, fresh: bool) -> None:
        self.rounds += 1
        self.waited[fresh] += 1
        self.fresh = fresh if self.fresh is None else self.fresh + OFTEN * (fresh - self.fresh)

    def doubt(self) -> None:
        """Drafts have become better: of windows that were not looked at in this round nothing is known."""
        self.curious = 1.0
        self.quiet = {False: False, True: False}
        for window in self.windows.values():
            if window.seen < self.rounds:
                window.forget()

    def elsewhere(self) -> Batches:
        """What is known for batches of another size."""
        other = copy.deepcopy(self)
        other.windows = {key: window.elsewhere() for key, window in self.windows.items()}
        return other


class Auto:
    """The running account of one scheduler. `costs` is asked for once, before the first round.

    Windows are told apart by whether a block is only beginning: then there are more states in it, and nobody has looked
    at it yet.
    """

    def __init__(self, costs: Callable[[], CostTable], block_length: int) -> None:
        self.clock = Clock(costs)
        self.block_length = block_length
        self.worth = [Worth() for _ in range(MOST_BLOCKS)]
        self._promised = 0  # the last round in which there were promises
        self._batches: dict[int, Batches] = {}
        self.rounds = 0

    def prepare(self) -> CostTable:
        """Asks for the costs, if that has not been done: it may measure, which the scheduler does before any clock."""
        return self.clock.table

    @property
    def trust(self) -> list[float]:
        """c, for each block of a window."""
        pause = self.rounds - self._promised
        return [worth.value(pause) for worth in self.worth]

    def batches(self, sequences: int) -> Batches:
        """What is known for about so many sequences; at first, what is known for the nearest number."""
        size = sequences.bit_length()
        if size not in self._batches:
            near = min(self._batches, key=lambda other: abs(other - size), default=None)
            self._batches[size] = Batches() if near is None else self._batches[near].elsewhere()
        return self._batches[size]

    def blocks(self, sequences: int, fresh: bool, longest: int = MOST_BLOCKS) -> int:
        """The window of the next round; 0 is ordinary decoding. fresh: a sequence is at the beginning of its block;
        longest: the longest window that can be drafted in this round, and is of use."""
        self.rounds += 1
        batches = self.batches(sequences)
        batches.begin(fresh)
        if batches.quiet[fresh] and batches.waited[fresh] <= HELD and batches.best[fresh] == 0:
            return 0
        passed, batches.waited[fresh], batches.quiet[fresh] = batches.waited[fresh], 0, False
        batches.pace = self._pace(sequences, fresh)
        if self.rounds <= len(FIRST):
            return min(FIRST[self.rounds - 1], longest)
        windows = [batches.windows[fresh, n] for n in range(min(longest, MOST_BLOCKS) + 1)]
        gains = [self._outlook(sequences, fresh, n) for n in range(len(windows))]
        best = max((n for n, window in enumerate(windows) if window.known), key=lambda n: gains[n])
        if best != batches.best[fresh]:
            batches.best[fresh] = best
            batches.curious = 1.0
        for n, window in enumerate(windows):
            if not window.known and gains[n] > gains[best]:
                return n
        usual, _ = windows[best].expected()
        losses = {n: max(gains[best] - gain, CURIOSITY * usual) for n, gain in enumerate(gains) if n != best}
        due = max(losses, key=lambda n: (batches.rounds - windows[n].ran) / (losses[n] * losses[n]))
        saved = min(batches.saved[fresh] + passed * batches.curious * CURIOSITY * usual, max(losses.values()))
        ready = saved >= losses[due] and batches.rounds - batches.tried >= PROBE
        batches.saved[fresh] = saved - losses[due] if ready else saved
        clear = min(losses.values(), default=0.0) > CLEAR * usual
        batches.quiet[fresh] = clear and not ready and batches.curious < 1
        if ready:
            batches.tried = batches.rounds
            batches.curious = max(WEARY * batches.curious, LEAST_CURIOUS)
        return due if ready else best

    def choose(self, promise: Sequence[float], sequences: int, fresh: bool, blocks: int) -> int:
        """How many of the states to verify. promise: probability of a visit of a sequence's likeliest 1st, 2nd, 3rd ...
        state, the mean over the sequences."""
        pace, overhead = self.batches(sequences).pace, self._overhead(sequences, fresh, blocks)
        best, most, total = 1, -float("inf"), 0.0
        for count, value in enumerate(promise, start=1):
            if value < LEAST and count > 1:
                break
            total += value
            rows = count + max(blocks - 1, 0)
            gain = _counted(total, blocks) - pace * self._seconds(rows, sequences, overhead)
            if gain > most:
                best, most = count, gain
        return best

    def foresee(self, sequences: int, fresh: bool, blocks: int) -> int:
        """How many states to verify, before the draft is known: what paid so far, to a power of two, so that few graphs
        serve all rounds. At first a state a token."""
        window = self.batches(sequences).windows[fresh, blocks]
        usual = window.states.value if window.known else blocks * self.block_length
        return 1 << round(math.log2(usual))

    def learn(self, sequences: int, fresh: bool, promises: Sequence[Sequence[float]]) -> None:
        """promises[w - 1]: as in `choose`, of the states in the first w blocks of this round's draft."""
        batches = self.batches(sequences)
        better = False
        for n, promise in enumerate(promises, start=1):
            states = self.choose(promise, sequences, fresh, n)
            visits = sum(promise[:states])
            if 0 < visits < math.inf:  # a draft model may overflow
                better |= batches.windows[fresh, n].promise(batches.rounds, states, visits)
        if better:
            batches.doubt()

    def drafts(self, sequences: int) -> bool:
        """Whether rounds of so many sequences are drafted for, but for trials."""
        return self.rounds < len(FIRST) or any(self.batches(sequences).best.values())

    def observe(
        self,
        choice: Choice,
        sequences: int,
        rows: int,
        seconds: float,
        visited: Sequence[float],
        reading: float = 0.0,
    ) -> None:
        """What a round came to. rows: of a sequence; seconds: without those of `reading`, in which the drafter caught
        up, as it would not have to in the next round; visited: states of each block that the walks came by, over all
        sequences."""
        batches, visits = self.batches(sequences), sum(visited) / sequences
        if not visits or batches.waited[choice.fresh]:  # not thought over, so not looked at either
            return
        if choice.promised:
            pause, self._promised = self.rounds - self._promised, self.rounds
            for at, worth in enumerate(self.worth):
                certain = sequences if at == 0 else 0  # the states at hand
                promised = choice.promised[at] - certain if at < min(len(choice.promised), len(visited)) else 0.0
                told = 0 < promised < math.inf
                worth.add(max(visited[at] - certain, 0.0) if told else 0.0, promised if told else 0.0, pause)
        if choice.blocks != batches.best[choice.fresh]:
            # the next trial comes the later for it
            batches.saved[choice.fresh] = max(-DEBT, batches.saved[choice.fresh] - batches.pace * reading)
        window = batches.windows[choice.fresh, choice.blocks]
        if window.run(batches.rounds, visits, rows / self.block_length):
            batches.doubt()
        if 0 < seconds < math.inf:  # else the clock has stood still, or was set
            known = window.overhead if window.times >= USUAL else None
            window.took(self.clock.overhead(sequences * rows, seconds, known))

    def _outlook(self, sequences: int, fresh: bool, blocks: int) -> float:
        """Visits of a sequence in a round beyond what its time is worth; of a window of which nothing is known, the
        most that can be hoped for."""
        batches = self.batches(sequences)
        window = batches.windows[fresh, blocks]
        visits, rows = window.expected() if window.known else (blocks * self.block_length, blocks)
        seconds = self._seconds(rows, sequences, self._overhead(sequences, fresh, blocks))
        return _counted(visits, blocks) - batches.pace * seconds

    def _pace(self, sequences: int, fresh: bool) -> float:
        """Visits a second, of a sequence: those that the best windows promise, or ordinary decoding where that is
        faster. At too slow a pace long rounds look better than they are."""
        batches = self.batches(sequences)
        often = fresh if batches.fresh is None else batches.fresh
        visits = seconds = 0.0
        for key, share in ((False, 1 - often), (True, often)):
            best = batches.best[key]
            come, rows = batches.windows[key, best].expected()
            visits += share * _counted(come, best)
            seconds += share * self._seconds(rows, sequences, self._overhead(sequences, key, best))
        _, rows = batches.windows[fresh, 0].expected()
        return max(visits / seconds, 1 / self._seconds(rows, sequences, self._overhead(sequences, fresh, 0)))

    def _seconds(self, rows: float, sequences: int, overhead: float) -> float:
        """rows: in blocks."""
        return self.clock.seconds(round(sequences * rows * self.block_length), overhead)

    def _overhead(self, sequences: int, fresh: bool, blocks: int) -> float:
        """Of a window that was hardly run yet, at most that of the nearest one, in proportion: one slow round is no
        reason to leave it."""
        windows = self.batches(sequences).windows
        window = windows[fresh, blocks]
        if window.times >= SURE:
            return window.overhead
        others = {key: other for key, other in windows.items() if other.times and other is not window}
        if not others:
            return window.overhead if math.isfinite(window.overhead) else 0.0
        near = min(others, key=lambda key: (abs(key[1] - blocks), key[0] != fresh))
        least = others[near].overhead
        return min(window.overhead, least * (blocks + 1) / (near[1] + 1) if least > 0 else least)


def _counted(visits: float, blocks: int) -> float:
    return visits * (1 - CAUTION) if blocks else visits
