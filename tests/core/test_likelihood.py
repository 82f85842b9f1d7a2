"""How likely a walk comes by a state: against a plain enumeration of all orders of the draft's steps."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from simsd.core.draft import BlockState, Draft
from simsd.core.likelihood import ORDER_SOFTENING, keep_likely, visits
from simsd.core.states import build, codes

MASK = 9


def draft_of(doubts: list[list[float]]) -> tuple[BlockState, Draft]:
    """A draft of single steps over whole blocks, with these doubts."""
    blocks, size = len(doubts), len(doubts[0])
    tokens = torch.arange(blocks * size).view(1, blocks, size) % MASK
    step = torch.arange(1, blocks * size + 1).view(1, blocks, size)
    state = BlockState(torch.full((1, size), MASK), torch.tensor([0]), torch.tensor([0]), MASK)
    return state, Draft(tokens, step, MASK, doubt=torch.tensor([doubts], dtype=torch.float64))


def by_hand(doubts: list[float]) -> dict[frozenset[int], float]:
    """The probability that a walk comes by each subset, summed over all orders that lead there."""
    weight = [math.exp(-d / ORDER_SOFTENING) for d in doubts]
    sure = [1 / (1 + math.exp(d)) for d in doubts]
    found: dict[frozenset[int], float] = {}
    steps = range(len(doubts))
    for size in range(len(doubts) + 1):
        for order in itertools.permutations(steps, size):
            chance = 1.0
            for at, step in enumerate(order):
                left = [s for s in steps if s not in order[:at]]
                chance *= weight[step] / sum(weight[s] for s in left) * sure[step]
            found[frozenset(order)] = found.get(frozenset(order), 0.0) + chance
    return found


def test_the_visits_are_the_sum_over_all_orders():
    doubts = [-2.0, 0.5, -6.0, -1.0]
    _, draft = draft_of([doubts])
    table = codes("subsets", 4)
    got = visits(draft, [table])[0][0]
    expected = by_hand(doubts)
    for code, chance in zip(table.tolist(), got.tolist(), strict=True):
        members = frozenset(i for i, inside in enumerate(code) if inside)
        assert chance == pytest.approx(expected[members], rel=1e-9)


def test_a_later_block_is_entered_as_often_as_the_one_before_is_finished():
    doubts = [[-2.0, 0.5, -3.0], [-1.0, -4.0, 0.0]]
    _, draft = draft_of(doubts)
    first, second = visits(draft, [codes("subsets", 3)] * 2)
    finished = by_hand(doubts[0])[frozenset(range(3))]
    assert float(second[0, 0]) == pytest.approx(finished, rel=1e-9)
    assert float(second.max()) <= finished * (1 + 1e-9)
    assert float(first[0, 0]) == 1.0


def test_the_current_state_stays_and_what_nothing_needs_goes():
    state, draft = draft_of([[3.0, 3.0], [-9.0, -9.0]])  # the first block is nearly hopeless
    tables = [codes("subsets", 2)] * 2
    kept = keep_likely(build(state, draft, tables), torch.cat(visits(draft, tables), 1), 0.2)
    assert kept.valid[0, kept.root]
    assert not kept.valid[0, : kept.in_place].any()
    assert int(kept.valid.sum()) == 1


def test_a_sure_draft_keeps_its_chain_over_both_blocks():
    state, draft = draft_of([[-30.0, -20.0], [-30.0, -20.0]])
    tables = [codes("subsets", 2)] * 2
    kept = keep_likely(build(state, draft, tables), torch.cat(visits(draft, tables), 1), 0.2)
    assert kept.valid[0, : kept.in_place].all()
    chain = {(0, 0), (0, 1), (1, 0), (1, 1)}
    places = zip(kept.block[0].tolist(), kept.taken[0].tolist(), kept.valid[0].tolist(), strict=True)
    assert chain <= {(block, taken) for block, taken, valid in places if valid}


def test_a_draft_without_confidences_cannot_be_judged():
    _, draft = draft_of([[0.0, 0.0]])
    with pytest.raises(ValueError, match="no confidences"):
        visits(Draft(draft.tokens, draft.step, MASK), [codes("subsets", 2)])
