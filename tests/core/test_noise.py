"""Keyed noise: the same key gives the same value, and everything else is as good as independent."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from simsd.core import sampling
from simsd.core.sampling import ACCEPT, ORDER, PROPOSE, RESIDUAL, TARGET, gumbel, noise_key, uniform

PURPOSES = (TARGET, ORDER, PROPOSE, ACCEPT, RESIDUAL)
EXTREME = (0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63), -(2**63) + 1)


def test_every_purpose_makes_a_key_that_differs_from_the_others():
    seed = torch.tensor([7])
    keys = {int(noise_key(seed, purpose, torch.tensor([3]))) for purpose in PURPOSES}
    assert len(keys) == len(PURPOSES)


def test_a_counter_is_the_same_as_a_number_and_as_a_tensor():
    seed = torch.tensor([5, 2**62])
    for counter in (0, 1, 2, 3, 4, 1000, 2**40):
        assert torch.equal(noise_key(seed, counter), noise_key(seed, torch.tensor(counter)))


def test_the_same_key_gives_the_same_noise_in_any_shape_and_company():
    seed, place = torch.tensor([3, 4, 5]), torch.arange(40)
    grid = noise_key(seed[:, None], TARGET, place, torch.tensor(2))
    alone = noise_key(torch.tensor(4), TARGET, torch.tensor(17), torch.tensor(2))
    assert grid[1, 17] == alone
    assert torch.equal(gumbel(grid, 11)[1, 17], gumbel(alone, 11))
    assert torch.equal(gumbel(grid, 5), gumbel(grid, 11)[..., :5])


def test_keys_of_different_seeds_purposes_positions_and_steps_never_meet():
    seed = torch.arange(12).view(-1, 1, 1, 1)
    purpose = torch.arange(5).view(-1, 1, 1)
    place = torch.arange(200).view(-1, 1)
    keys = noise_key(seed, purpose, place, torch.arange(16)).flatten()
    assert len(keys) == 12 * 5 * 200 * 16
    assert len(keys.unique()) == len(keys)


def test_exchanging_two_counters_changes_the_key():
    seed, a, b = torch.tensor(1), torch.tensor(2), torch.tensor(3)
    assert noise_key(seed, TARGET, a, b) != noise_key(seed, TARGET, b, a)
    assert noise_key(a, TARGET, seed) != noise_key(seed, TARGET, a)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_stays_inside_the_open_interval_for_extreme_hashes(monkeypatch, dtype):
    monkeypatch.setattr(sampling, "_mix", lambda x: x)  # the hash is a bijection: every value comes from some key
    values = uniform(torch.tensor(EXTREME), dtype)
    assert bool((values > 0).all()) and bool((values < 1).all())
    assert values.min() == 2.0**-24 and values.max() == 1 - 2.0**-24


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gumbel_noise_is_finite_for_extreme_hashes(monkeypatch, dtype):
    monkeypatch.setattr(sampling, "_mix", lambda x: x)
    values = gumbel(torch.tensor(EXTREME), 1, dtype)
    assert bool(values.isfinite().all())
    assert values.max() > 16 and values.min() < -2.5


def dependence(table: torch.Tensor) -> float:
    """p-value of the hypothesis that rows and columns are independent."""
    return float(stats.chi2_contingency(table.numpy())[1])  # type: ignore[arg-type]


def many_keys(count: int) -> torch.Tensor:
    """Keys as decoding asks for them: neighbouring seeds, positions and steps."""
    place = torch.arange(count // 40).view(-1, 1)
    return noise_key(torch.arange(10).view(-1, 1, 1), TARGET, place, torch.arange(4)).flatten()


def test_uniform_noise_is_uniform():
    values = uniform(many_keys(200_000), torch.float64)
    counts = torch.histc(values, 256, 0, 1).numpy()
    assert stats.chisquare(counts).pvalue > 1e-3
    assert stats.kstest(values[:50_000].numpy(), "uniform").pvalue > 1e-3


def test_gumbel_noise_has_the_moments_and_the_law_of_gumbel():
    values = gumbel(many_keys(40_000), 5, torch.float64).flatten()
    count = len(values)
    assert abs(values.mean() - 0.5772156649) < 5 * math.pi / math.sqrt(6 * count)
    assert abs(values.var() - math.pi**2 / 6) < 0.03
    assert stats.kstest(values[:50_000].numpy(), "gumbel_r").pvalue > 1e-3


def pair(counter: str) -> tuple[torch.Tensor, torch.Tensor]:
    """40,000 uniform numbers, and those of the keys that differ in one counter by one."""
    seed, place, step = torch.arange(100).view(-1, 1, 1), torch.arange(100).view(-1, 1), torch.arange(4)
    one = {"seed": seed, "purpose": TARGET, "place": place, "step": step}
    other = one | {counter: one[counter] + 1}  # type: ignore[operator]
    a, b = (noise_key(d["seed"], d["purpose"], d["place"], d["step"]) for d in (one, other))
    return uniform(a, torch.float64).flatten(), uniform(b, torch.float64).flatten()


@pytest.mark.parametrize("counter", ["seed", "purpose", "place", "step"])
def test_noise_of_neighbouring_keys_is_independent(counter):
    a, b = pair(counter)
    table = torch.zeros(8, 8).index_put_(((a * 8).long(), (b * 8).long()), torch.tensor(1.0), accumulate=True)
    assert dependence(table) > 1e-3
    assert abs(float(torch.corrcoef(torch.stack((a, b)))[0, 1])) < 4.5 / math.sqrt(len(a))


def test_noise_of_neighbouring_tokens_is_independent():
    noise = gumbel(many_keys(40_000), 4, torch.float64)
    winner = noise.argmax(-1)
    assert stats.chisquare(torch.bincount(winner, minlength=4).numpy()).pvalue > 1e-3
    table = torch.zeros(4, 4).index_put_((winner[:-1], winner[1:]), torch.tensor(1.0), accumulate=True)
    assert dependence(table) > 1e-3
