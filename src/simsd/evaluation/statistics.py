"""The few statistics that reports give: a median with its spread, an interval for a share, a paired test."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

Z95 = 1.959963984540054  # standard normal quantile of 0.975


@dataclass(frozen=True)
class Spread:
    """A median with the first and third quartile; all three are the value itself where there is only one."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises ValueError where there is no value."""
        if not values:
            raise ValueError("no values, so no median")
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share seen in `count` independent trials (Wilson 1927)."""
    if count < 1:
        return 0.0, 1.0
    z = Z95
    centre = share + z * z / (2 * count)
    reach = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return max(0.0, (centre - reach) / scale), min(1.0, (centre + reach) / scale)


def mcnemar(lost: int, gained: int) -> float:
    """The exact two-sided McNemar test: the p value of `lost` against `gained` among pairs that differ.

    Under "no difference" each differing pair falls either way with probability 1/2.
    """
    trials = lost + gained
    if trials == 0:
        return 1.0
    tail = sum(math.comb(trials, k) for k in range(min(lost, gained) + 1)) / 2**trials
    return min(1.0, 2 * tail)
