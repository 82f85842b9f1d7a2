"""Which masked positions a step reveals: every rule against a plain loop (method section 2)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simsd.core import sampling, schedule
from simsd.core.schedule import STRATEGIES, doubt_threshold, quotas, rank, reveal
from tests.core.cases import make_sampler, make_schedule

# Scores from few values, exact in floating point, so that ties and sums that meet the bound occur.
scores = st.integers(-8, 8).map(lambda k: k / 4)
rows = st.integers(1, 6).flatmap(
    lambda size: st.tuples(
        st.lists(scores, min_size=size, max_size=size),
        st.lists(st.booleans(), min_size=size, max_size=size),
        st.integers(1, size + 2),
    )
)


def lowest(score: list[float], masked: list[bool], n: int) -> list[bool]:
    """The n masked positions of the lowest score, the first of equal ones."""
    left = [i for i, m in enumerate(masked) if m]
    chosen = sorted(left, key=lambda i: (score[i], i))[:n]
    return [i in chosen for i in range(len(score))]


def bounded(score: list[float], masked: list[bool], bound: float) -> list[bool]:
    """By rising score while the sum stays under the bound, at least one."""
    order = sorted((i for i, m in enumerate(masked) if m), key=lambda i: (score[i], i))
    chosen, total = order[:1], sum(score[i] for i in order[:1])
    for i in order[1:]:
        total += score[i]
        if total >= bound:
            break
        chosen.append(i)
    return [i in chosen for i in range(len(score))]


@given(rows)
def test_rank_counts_the_masked_positions_before_each(row):
    score, masked, _ = row
    found = rank(torch.tensor(score), torch.tensor(masked)).tolist()
    order = sorted((i for i, m in enumerate(masked) if m), key=lambda i: (score[i], i))
    for i, m in enumerate(masked):
        if m:
            assert found[i] == order.index(i)


@given(rows)
def test_static_reveals_the_n_most_confident(row):
    score, masked, n = row
    found = schedule.low_confidence_static(torch.tensor(score), torch.tensor(masked), torch.tensor(n))
    assert found.tolist() == lowest(score, masked, n)


@given(rows, scores)
def test_dynamic_reveals_all_above_the_threshold_and_never_fewer_than_n(row, threshold):
    score, masked, n = row
    found = schedule.low_confidence_dynamic(
        torch.tensor(score), torch.tensor(masked), torch.tensor(n), torch.tensor(threshold)
    )
    sure = [m and s < threshold for s, m in zip(score, masked, strict=True)]
    assert found.tolist() == [a or b for a, b in zip(sure, lowest(score, masked, n), strict=True)]


@given(rows)
def test_sequential_reveals_the_n_leftmost(row):
    _, masked, n = row
    left = [i for i, m in enumerate(masked) if m][:n]
    found = schedule.sequential(torch.tensor(masked), torch.tensor(n))
    assert found.tolist() == [i in left for i in range(len(masked))]


@given(rows, st.integers(0, 24).map(lambda k: k / 4))
def test_entropy_bounded_reveals_while_the_sum_stays_under_the_bound(row, bound):
    score, masked, _ = row
    entropy = [abs(s) for s in score]
    found = schedule.entropy_bounded(torch.tensor(entropy), torch.tensor(masked), torch.tensor(bound))
    assert found.tolist() == bounded(entropy, masked, bound)


@given(rows)
def test_random_reveals_those_of_the_smallest_noise(row):
    score, masked, n = row
    found = schedule.random(torch.tensor(score), torch.tensor(masked), torch.tensor(n))
    assert found.tolist() == lowest(score, masked, n)


@pytest.mark.parametrize("block_length", range(1, 17))
def test_quotas_share_the_block_out_over_every_number_of_steps(block_length):
    for steps in range(1, block_length + 1):
        share = quotas(block_length, steps)
        assert len(share) == steps and sum(share) == block_length
        extra = block_length % steps
        assert share == [block_length // steps + 1] * extra + [block_length // steps] * (steps - extra)


@pytest.mark.parametrize("steps", [0, -1, 5])
def test_steps_that_a_block_cannot_be_cut_into_are_refused(steps):
    with pytest.raises(ValueError, match=f"denoising_steps is {steps}.*block length 4"):
        quotas(4, steps)


def doubts(confidences: list[float]) -> torch.Tensor:
    return torch.tensor([[math.log1p(-c) - math.log(c) for c in confidences]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("threshold", "revealed"),
    [
        (0.0, [True, True, True, True]),
        (0.3, [False, True, True, True]),
        (0.6, [False, True, False, True]),
        (0.9, [False, False, False, True]),
        (1.0, [False, False, False, True]),  # nothing is above 1, but one token is always revealed
    ],
)
def test_dynamic_compares_confidence_with_the_threshold(threshold, revealed):
    doubt, masked = doubts([0.2, 0.7, 0.5, 0.99]), torch.ones(1, 4, dtype=torch.bool)
    rule = make_schedule("low_confidence_dynamic", threshold=threshold)
    assert reveal(rule, masked, torch.tensor([0]), doubt, None, None).tolist() == [revealed]


def test_a_confidence_that_is_the_threshold_itself_is_not_above_it():
    assert doubt_threshold(0.5) == 0.0
    found = schedule.low_confidence_dynamic(
        torch.tensor([0.0, -0.1, -5.0]), torch.ones(3, dtype=torch.bool), torch.tensor(1), torch.tensor(0.0)
    )
    assert found.tolist() == [False, True, True]


def test_threshold_0_is_infinite_doubt_and_threshold_1_is_none():
    assert doubt_threshold(0.0) == math.inf and doubt_threshold(-1.0) == math.inf
    assert doubt_threshold(1.0) == -math.inf and doubt_threshold(2.0) == -math.inf
    assert doubt_threshold(0.9) == pytest.approx(math.log(0.1 / 0.9))


def test_certain_tokens_are_still_ordered_where_confidence_rounds_to_1():
    logits = torch.zeros(1, 4, 6)
    logits[0, :, 2] = torch.tensor([30.0, 90.0, 41.0, 60.0])
    assert (logits.softmax(-1)[..., 2] == 1).all()  # the confidences themselves are ties
    drawn = sampling.draw(logits, make_sampler(), None)
    masked, rule = torch.ones(1, 4, dtype=torch.bool), make_schedule()
    order = []
    for step in range(4):
        shown = reveal(rule, masked, torch.tensor([step]), drawn.doubt, None, None)
        order += shown[0].nonzero().flatten().tolist()
        masked = masked & ~shown
    assert order == [1, 3, 2, 0]


def test_equal_confidences_are_revealed_from_the_left():
    rule = make_schedule(denoising_steps=2)
    masked = torch.tensor([[True, False, True, True]])
    shown = reveal(rule, masked, torch.tensor([0]), torch.zeros(1, 4), None, None)
    assert shown.tolist() == [[True, False, True, False]]


def test_each_step_reveals_its_own_quota_and_steps_beyond_the_last_that_of_the_last():
    rule = make_schedule("sequential", block_length=8, denoising_steps=3)  # 3, 3, 2
    masked = torch.ones(1, 5, 8, dtype=torch.bool)  # five states of one sequence
    shown = reveal(rule, masked, torch.tensor([[0, 1, 2, 3, 9]]), torch.zeros(1, 5, 8), None, None)
    assert shown.sum(-1).tolist() == [[3, 3, 2, 2, 2]]


@pytest.mark.parametrize("name", STRATEGIES)
def test_more_reveals_than_masks_left_reveal_the_masks_left(name):
    rule = make_schedule(name, denoising_steps=1, entropy=99.0)
    masked = torch.tensor([[False, True, False, False]])
    shown = reveal(rule, masked, torch.tensor([0]), torch.zeros(1, 4), torch.zeros(1, 4), torch.zeros(1, 4))
    assert torch.equal(shown, masked)


@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data())
def test_every_strategy_reveals_at_least_one_mask_and_nothing_known(name, data):
    size = data.draw(st.integers(1, 8))
    masked = torch.tensor([data.draw(st.lists(st.booleans(), min_size=size, max_size=size))])
    doubt = torch.tensor([data.draw(st.lists(st.floats(-200, 20), min_size=size, max_size=size))])
    entropy = torch.tensor([data.draw(st.lists(st.floats(0, 12), min_size=size, max_size=size))])
    rule = make_schedule(
        name, size, data.draw(st.integers(1, size)), data.draw(st.sampled_from([0.0, 0.9, 1.0])), data.draw(scores)
    )
    shown = reveal(rule, masked, torch.tensor([data.draw(st.integers(0, 9))]), doubt, entropy, entropy)
    assert not (shown & ~masked).any()
    assert bool(shown.any()) == bool(masked.any())


def test_a_batch_of_all_strategies_is_each_sequence_by_itself():
    torch.manual_seed(1)
    masked = torch.rand(5, 3, 4) < 0.7
    doubt, entropy, noise = torch.randn(5, 3, 4), torch.rand(5, 3, 4), torch.rand(5, 3, 4)
    taken = torch.randint(0, 4, (5, 3))
    together = reveal(make_schedule(STRATEGIES, entropy=0.8), masked, taken, doubt, entropy, noise)
    for row, name in enumerate(STRATEGIES):
        own = slice(row, row + 1)
        alone = reveal(make_schedule(name, entropy=0.8), masked[own], taken[own], doubt[own], entropy[own], noise[own])
        assert torch.equal(together[own], alone)
