"""A mean that follows what it is the mean of: slowly while that stays where it was, at once when it has moved."""

from __future__ import annotations

import math

SLACK = 0.5  # spreads by which a value may lie off the mean and tell nothing
NARROW = 0.1  # the least spread, of the mean
WIDE = 0.5  # the spread before anything is known of it
MEMORY = 0.96  # of the spread, a value


class Level:
    """The mean of positive values that come now and then (a Kalman filter of one number).

    value: the mean. doubt: its variance, in variances of one value; without a guess to begin with it is infinite. Each
    value lessens it, and each round adds `drift`, so that a value weighs more after a pause. alarm: how many spreads
    beyond the slack, summed up, are no chance: then the mean is that of the newest values.
    """

    def __init__(self, value: float, doubt: float = math.inf, *, drift: float, alarm: float = math.inf) -> None:
        self.value, self.doubt, self.alarm = value, doubt, alarm
        self._drift, self._most = drift, min(doubt, 1.0)
        self._spread = WIDE**2  # squared, of the mean
        self._above, self._below = Side(), Side()

    @property
    def known(self) -> bool:
        return math.isfinite(self.doubt)

    def forget(self) -> None:
        """The next value is all that is known."""
        self.doubt = math.inf

    def add(self, value: float, rounds: int = 1) -> bool:
        """A value, so many rounds after the one before. True if this shows that they have moved up."""
        if self.known:
            self.doubt = max(min(self.doubt + self._drift * rounds, self._most), self.doubt)
            off = value / self.value - 1
            spread = max(math.sqrt(self._spread), NARROW)
            self._above.add(off / spread, value)
            self._below.add(-off / spread, value)
            self._spread += (1 - MEMORY) * (min(abs(off), 3 * spread) ** 2 - self._spread)
        gain = 1 / (1 + 1 / self.doubt)
        self.value += gain * (value - self.value)
        self.doubt = gain
        risen = self._above.off > self.alarm
        if risen or self._below.off > self.alarm:
            since = self._above if risen else self._below
            self.value, self.doubt = since.total / since.count, 1 / since.count
            self._above, self._below = Side(), Side()
        return risen


class Side:
    """How far values lay off on one side, and what they were since they do (a cusum, Page 1954)."""

    def __init__(self) -> None:
        self.off, self.count, self.total = 0.0, 0, 0.0

    def add(self, off: float, value: float) -> None:
        self.off += off - SLACK
        if self.off <= 0:
            self.off, self.count, self.total = 0.0, 0, 0.0
        else:
            self.count += 1
            self.total += value
