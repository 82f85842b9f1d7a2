"""A mean that moves when its values do, and not by chance."""

from __future__ import annotations

import math
import random

import pytest

from simsd.engine.level import Level


def test_the_first_values_are_averaged():
    level = Level(1.0, drift=0.0)
    assert not level.known
    for value in (2.0, 4.0, 6.0, 4.0):
        level.add(value)
    assert level.known
    assert level.value == pytest.approx(4.0)


def test_a_guess_weighs_as_many_values_as_it_is_sure_of():
    level = Level(1.0, 1 / 8, drift=0.0)
    for _ in range(8):
        level.add(2.0)
    assert level.value == pytest.approx(1.5)


def test_what_was_forgotten_is_replaced_by_the_next_value():
    level = Level(1.0, drift=0.001)
    level.add(5.0)
    level.forget()
    assert not level.known
    level.add(2.0)
    assert level.value == 2.0


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("spread", [0.0, 0.2, 0.5])
def test_chance_moves_it_little(spread, seed):
    chance, level = random.Random(seed), Level(1.0, drift=0.0001, alarm=10.0)
    for _ in range(2000):
        level.add(2 * max(1 + chance.gauss(0, spread), 0.1))
    assert level.value == pytest.approx(2.0, rel=0.15)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("before", "after"), [(8.0, 1.0), (1.0, 8.0), (2.0, 1.0), (1.0, 2.0)])
def test_what_lasts_is_followed_within_a_few_values(before, after, seed):
    chance, level = random.Random(seed), Level(1.0, drift=0.0001, alarm=10.0)
    rose = [level.add(before * chance.uniform(0.6, 1.4)) for _ in range(500)]
    rises = [level.add(after * chance.uniform(0.6, 1.4)) for _ in range(20)]
    assert abs(level.value - after) <= 0.1 * abs(before - after) + 0.15 * after
    assert not any(rose[50:])
    assert any(rises) == (after > before)


def test_a_value_after_a_pause_weighs_more():
    levels = [Level(1.0, drift=0.001) for _ in range(2)]
    for level, pause in zip(levels, (1, 300), strict=True):
        for _ in range(100):
            level.add(1.0)
        level.add(1.3, pause)
    assert levels[0].value < levels[1].value < 1.3


def test_a_pause_alone_is_no_reason_to_doubt_more_than_at_first():
    level = Level(1.0, 1 / 16, drift=0.1)
    level.add(2.0, 10**6)
    assert level.value == pytest.approx(1 + 1 / 17)
    assert math.isfinite(level.doubt)
