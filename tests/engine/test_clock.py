"""How long rounds take: whatever is slow for everything says nothing of a window."""

from __future__ import annotations

import pytest

from simsd.engine.clock import RECENT, SWING, Clock
from simsd.engine.costs import CostTable

TABLE = CostTable((4, 256), (1.0, 1.0 + 252 * 0.05))
OWN, OTHER = 1.0, 2.0  # overheads


def run(clock: Clock, slow: float, rounds: int = RECENT) -> list[float]:
    """What rounds of one window, which usually take TABLE + OWN, say of its overhead."""
    return [clock.overhead(8, slow * (TABLE(8) + OWN), OWN) for _ in range(rounds)]


@pytest.mark.parametrize("slow", [0.7, 1.5])
def test_the_pace_is_that_of_the_newest_rounds_and_holds_for_every_window(slow):
    clock = Clock(lambda: TABLE)
    assert run(clock, slow)[-1] == pytest.approx(OWN)
    assert clock.seconds(100, OTHER) == pytest.approx(slow * (TABLE(100) + OTHER))
    run(clock, 1.0)
    assert clock.seconds(100, OTHER) == pytest.approx(TABLE(100) + OTHER)


def test_a_few_slow_rounds_are_no_slow_machine():
    clock = Clock(lambda: TABLE)
    run(clock, 1.0)
    run(clock, 3.0, RECENT // 2)
    assert clock.seconds(8, OWN) == pytest.approx(TABLE(8) + OWN)


def test_what_is_beyond_any_swing_of_the_machine_belongs_to_the_window():
    clock = Clock(lambda: TABLE)
    found = run(clock, 10 * SWING)[-1]
    assert clock.pace == SWING
    assert found == pytest.approx(10 * (TABLE(8) + OWN) - TABLE(8))


def test_a_window_of_which_little_is_known_tells_no_pace_and_lets_an_old_one_be_forgotten():
    clock = Clock(lambda: TABLE)
    run(clock, 1.5)
    for _ in range(RECENT):
        found = clock.overhead(8, TABLE(8) + OTHER, None)
    assert clock.pace == 1.0
    assert found == pytest.approx(OTHER)


def test_a_table_that_was_measured_on_a_busy_machine_is_scaled_down_and_never_up():
    clock = Clock(lambda: CostTable((4, 256), (10.0, 10 * TABLE(256))))
    for _ in range(RECENT):
        clock.overhead(8, TABLE(8), None)
    assert clock.seconds(100, 0.0) == pytest.approx(TABLE(100))
    fast = Clock(lambda: CostTable((4, 256), (0.1, 0.1 * TABLE(256))))
    for _ in range(RECENT):
        fast.overhead(8, TABLE(8), None)
    assert fast.scale == 1.0


def test_the_table_is_asked_for_once():
    asked = []
    clock = Clock(lambda: asked.append(None) or TABLE)
    assert not asked
    run(clock, 1.0)
    assert len(asked) == 1
