"""What a forward costs, by its query tokens: measured once for a model on its device."""

from __future__ import annotations

import statistics
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from simsd.core.layout import Layout, block_causal
from simsd.core.prefix import Prefix
from simsd.engine.runner import Runner

PREFIX = 256  # tokens that the rows attend to; the cost of longer ones differs by the attention term alone
MOST_ROWS = 256
BUDGET = 2.0  # seconds; a large model on a CPU is measured with fewer rows
REPEATS = 5  # the first one apart
SLOPE = 1.5  # times what was to be expected, that a single forward is believed
PATIENCE = 0.04  # seconds; of the slower ones two repeats do: they weigh less, and the user waits for them


@dataclass(frozen=True)
class CostTable:
    """Seconds of a target forward by query tokens: straight between what was measured, and on beyond it."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.rows or len(self.rows) != len(self.seconds) or list(self.rows) != sorted(set(self.rows)):
            raise ValueError(f"rows must rise and have a time each: {self.rows}, {self.seconds}")

    def __call__(self, rows: int) -> float:
        if len(self.rows) == 1 or rows <= self.rows[0]:
            return self.seconds[0]
        at = min(bisect_left(self.rows, rows), len(self.rows) - 1)
        (low, high), (begin, end) = self.rows[at - 1 : at + 1], self.seconds[at - 1 : at + 1]
        return begin + max(end - begin, 0.0) * (rows - low) / (high - low)


class Costs:
    """The tables measured so far for one target model: of each block length and number of threads, with graphs
    or without, once, by one thread at a time."""

    def __init__(self) -> None:
        self._tables: dict[tuple[int, int, bool], CostTable] = {}
        self._lock = threading.Lock()

    def table(self, target: Runner) -> CostTable:
        """The table of this runner's model, measured now if need be."""
        key = (target.block_length, torch.get_num_threads(), target.graphs is not None)
        with self._lock:
            if key not in self._tables:
                self._tables[key] = measure(target)
            return self._tables[key]


@torch.inference_mode()
def measure(target: Runner) -> CostTable:
    """Times the model's forward, head included, with 1, 2, 4 ... blocks of rows, as this runner would run it; medians.

    A forward of more rows bounds those of fewer from above, should one of them have been held up. It has a cache of
    its own and disturbs nobody's.
    """
    block_length, max_position = target.block_length, target.max_position
    most = max_position // block_length  # blocks
    prefix = min(PREFIX // block_length, most // 2) * block_length
    runner = target.another()
    runner.reserve(1, min(prefix + MOST_ROWS + 1, max_position + 1))
    rows: list[int] = []
    seconds: list[float] = []
    spent = _timed(forward_of(runner, block_length, prefix))  # what has to start up, does it now
    likely, count = SLOPE * spent, 1
    while count * block_length <= max(MOST_ROWS, block_length) and prefix // block_length + count <= most:
        rows.append(count * block_length)
        taken = _seconds(runner, rows[-1], prefix, likely)
        seconds.append(statistics.median_low(taken[1:] or taken))
        spent += sum(taken)
        likely = 2 * SLOPE * seconds[-1]
        if spent > BUDGET and len(rows) > 1:
            break
        count *= 2
    least = [*accumulate(reversed(seconds), min)]
    return CostTable(tuple(rows), tuple(reversed(least)))


def forward_of(runner: Runner, rows: int, prefix: int) -> Callable[[], object]:
    """A forward of so many rows behind so many stored tokens, head included, to be timed; it waits for the device."""
    device = runner.model.device
    runner.reserve(1, prefix + rows + 1)
    ids = torch.zeros(1, rows, dtype=torch.long, device=device)
    there = torch.tensor([prefix], device=device)
    layout = replace(
        block_causal(ids, there, runner.block_length), judge=torch.arange(rows, device=device).expand(1, -1)
    )
    given = Forward(layout, runner.prefix([prefix], [0], there))
    forward = partial(_corner, runner)
    return lambda: runner.run(forward, given).item()


@dataclass(frozen=True)
class Forward:
    """What a forward depends on."""

    layout: Layout
    prefix: Prefix


def _corner(runner: Runner, given: Forward) -> Tensor:
    """One of the logits: to be waited for, not to be looked at."""
    return runner.logits(given.layout, given.prefix)[0, -1, 0]


def _seconds(runner: Runner, rows: int, prefix: int, likely: float) -> list[float]:
    """Of several forwards, the first of which may be slow; recording a graph is not timed. A long one is timed once,
    unless it took more than is `likely`."""
    forward = forward_of(runner, rows, prefix)
    for _ in range(0 if runner.graphs is None else runner.graphs.after):
        forward()
    taken: list[float] = []
    while len(taken) <= REPEATS:
        taken.append(_timed(forward))
        long = min(taken) > BUDGET / 4 and (len(taken) > 1 or taken[0] <= likely)
        if long or (len(taken) > 2 and sum(taken) > PATIENCE):
            break
    return taken


def _timed(forward: Callable[[], object]) -> float:
    begin = time.perf_counter()
    forward()
    return time.perf_counter() - begin
