"""How long rounds take: the target's forward by a table, what comes beside it, and how fast the machine is just now."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

from simsd.engine.costs import CostTable

RECENT = 15  # rounds whose median counts
SWING = 2.0  # times the usual pace, at most, for everything alike: what is beyond it belongs to a window
INSTANT = 1e-9  # seconds that a round takes at least, whatever the clock says


class Clock:
    """seconds = pace * (scale * T(rows) + overhead): T the table, the overhead that of a window.

    scale: at most 1: less where whole rounds have taken less than their forward, as it was measured on a busy machine.
    pace: of the newest rounds, in what they usually take. Without it a moment in which all is slow would count against
    the window that happens to run, and for all others.
    """

    def __init__(self, costs: Callable[[], CostTable]) -> None:
        """costs: asked for once."""
        self._costs = costs
        self._table: CostTable | None = None
        self._shares: deque[float] = deque(maxlen=RECENT)  # seconds of rounds, of those of their forward alone
        self._paces: deque[float] = deque(maxlen=RECENT)  # seconds of rounds, of those that they usually take
        self.scale = self.pace = 1.0

    @property
    def table(self) -> CostTable:
        if self._table is None:
            self._table = self._costs()
        return self._table

    def seconds(self, rows: int, overhead: float) -> float:
        """Of a round over `rows` query tokens with that overhead, as the machine is now."""
        return max(self.pace * (self._forward(rows) + overhead), INSTANT)

    def overhead(self, rows: int, seconds: float, usual: float | None) -> float:
        """What a round has taken beside its forward, at the usual pace.

        usual: what its window usually does; None where that is not known well enough to tell the machine's pace by.
        """
        self._shares.append(seconds / max(self.table(rows), INSTANT))
        self.scale = min(statistics.median_low(self._shares), 1.0)
        expected = self._forward(rows) + (0.0 if usual is None else usual)
        if expected > INSTANT:
            self._paces.append(1.0 if usual is None else seconds / expected)
            self.pace = min(max(statistics.median_low(self._paces), 1 / SWING), SWING)
        return seconds / self.pace - self._forward(rows)

    def _forward(self, rows: int) -> float:
        return self.scale * self.table(rows)
