"""Which finished blocks need no store pass (method section 4b)."""

from __future__ import annotations

import pytest
import torch

from simsd.core.acceptance import Outcome
from simsd.core.layout import unrolled
from simsd.core.states import build, codes, trim
from simsd.engine.verify import Plan, stored_blocks
from tests.core.cases import MASK, block_state, draft, ids

# Three drafts of one batch: to the third block, to the second, and the first block alone.
STATE = block_state("..", "..", "..")
DRAFT = draft(("ab|cd|e.", "12|34|56"), ("ab|c.|..", "12|34|44"), ("ab|..|..", "12|33|33"))


def stored(*committed: str) -> list[int]:
    states = trim(build(STATE, DRAFT, [codes("chain", 2)] * 3))
    tokens = torch.tensor([[ids(part) for part in text.split("|")] for text in committed])
    outcome = Outcome(tokens, tokens, tokens, tokens == 0, tokens[:, 0, 0], MASK)
    return stored_blocks(Plan(DRAFT, unrolled(STATE, states), states), outcome).tolist()


def test_finished_copies_that_came_true_are_stored_in_place():
    assert stored("ab|cd|e.", "ab|c.|..", "ab|..|..")[:2] == [2, 1]


def test_a_block_without_a_finished_copy_of_its_own_is_left_pending():
    assert stored("ab|cd|e.", "ab|cd|..", "ab|..|..") == [2, 1, 0]


@pytest.mark.parametrize(("tokens", "count"), [("xb|cd|..", 0), ("ab|xd|..", 1), ("a.|..|..", 0)])
def test_another_token_makes_the_block_and_those_after_it_pending(tokens, count):
    assert stored(tokens, "..|..|..", "..|..|..")[0] == count


def test_the_empty_block_of_a_short_draft_is_no_finished_copy():
    assert stored("..|..|..", "..|..|..", "ab|..|..") == [0, 0, 0]
