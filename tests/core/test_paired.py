"""The paired layout against matrices derived by hand from the table of method section 4a."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simsd.core.draft import BlockState, Draft
from simsd.core.layout import paired
from tests.core.cases import MASK, block_state, draft, ids, matrix

# (state, tokens, steps, mask), columns and rows D0 .. D(B-1), M0 .. M(B-1), block after block.
HAND_MADE = {
    "left to right": (
        "..",
        "ab",
        "12",
        """
        10 01
        11 00
        00 11
        10 01
        """,
    ),
    "right to left": (
        "..",
        "ab",
        "21",
        """
        11 00
        01 10
        01 10
        00 11
        """,
    ),
    "both in one step": (
        "..",
        "ab",
        "11",
        """
        11 00
        11 00
        00 11
        00 11
        """,
    ),
    "nothing drafted": (
        "..",
        "..",
        "11",
        """
        11 00
        11 00
        00 11
        00 11
        """,
    ),
    "a known token in front": (
        "a..",
        "abc",
        "012",
        """
        100 011
        110 001
        111 000
        000 111
        100 011
        110 001
        """,
    ),
    "a known token in the middle, the rest in one step": (
        ".b.",
        "abc",
        "101",
        """
        111 000
        010 101
        111 000
        010 101
        000 111
        010 101
        """,
    ),
    "a known token, an undrafted position, steps out of order": (
        ".b..",
        "ab.d",
        "2031",
        """
        1101 0010
        0100 1011
        1111 0000
        0101 1010
        0101 1010
        0000 1111
        1101 0010
        0100 1011
        """,
    ),
    "two blocks: the later one sees the data of the earlier, never its slots": (
        "a.",
        "ab|cd",
        "01|32",
        """
        10 01 00 00
        11 00 00 00
        00 11 00 00
        10 01 00 00
        11 00 11 00
        11 00 01 10
        11 00 01 10
        11 00 00 11
        """,
    ),
    "two blocks, the second only begun": (
        "..",
        "ab|c.",
        "11|23",
        """
        11 00 00 00
        11 00 00 00
        00 11 00 00
        00 11 00 00
        11 00 10 01
        11 00 11 00
        11 00 00 11
        11 00 10 01
        """,
    ),
    "three blocks of one token": (
        ".",
        "a|b|c",
        "1|2|3",
        """
        1 0 0 0 0 0
        0 1 0 0 0 0
        1 0 1 0 0 0
        1 0 0 1 0 0
        1 0 1 0 1 0
        1 0 1 0 0 1
        """,
    ),
}


@pytest.mark.parametrize("name", HAND_MADE)
def test_mask_is_the_one_derived_by_hand(name):
    state, tokens, steps, expected = HAND_MADE[name]
    layout = paired(block_state(state), draft((tokens, steps)))
    assert layout.mask[0].long().tolist() == matrix(expected).long().tolist()


def test_rows_are_the_block_and_as_many_masks_and_the_slots_judge():
    guess = draft(("abc.|....", "2013|3333"), ("ab..|....", "0122|2222"))
    layout = paired(block_state(".b..", "a...", start=[8, 20]), guess)
    dots = "...."
    assert layout.ids.tolist() == [ids("abc." + dots + dots + dots), ids("ab.." + dots + dots + dots)]
    assert layout.judge.tolist() == [[4, 5, 6, 7, 12, 13, 14, 15]] * 2
    assert layout.skip.tolist() == [0, 0]


def test_position_copy_puts_each_slot_at_the_position_of_its_partner():
    guess = draft(("ab|..", "12|33"), ("ab|..", "12|33"))
    layout = paired(block_state("..", "..", start=[4, 10]), guess)
    assert layout.positions.tolist() == [[4, 5, 4, 5, 6, 7, 6, 7], [10, 11, 10, 11, 12, 13, 12, 13]]


def test_without_position_copy_the_slots_are_numbered_on_and_nothing_else_changes():
    guess = draft(("ab|..", "12|33"))
    state = block_state("..", start=4)
    with_copy, without = paired(state, guess), paired(state, guess, position_copy=False)
    assert without.positions.tolist() == [[4, 5, 6, 7, 6, 7, 8, 9]]
    assert torch.equal(with_copy.mask, without.mask)
    assert torch.equal(with_copy.ids, without.ids) and torch.equal(with_copy.judge, without.judge)


def test_the_data_of_an_undrafted_position_is_seen_by_nobody_but_undrafted_data():
    guess = draft(("a.c.|....", "1323|3333"))
    mask = paired(block_state("...."), guess).mask[0]
    seen_by = mask[:8, 1].nonzero().flatten().tolist()
    assert seen_by == [1, 3]


def test_the_slots_of_known_positions_are_seen_by_no_row_that_is_judged():
    guess = draft(("abcd|....", "0120|3333"))
    mask = paired(block_state("a..d"), guess).mask[0]
    judged = [5, 6, *range(12, 16)]
    data = [0, 1, 2, 3, 8, 9, 10, 11]
    assert not mask[judged + data][:, [4, 7]].any()


@given(st.data())
def test_mask_follows_the_table_entry_by_entry(data):
    size, blocks = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    tau = data.draw(
        st.lists(st.lists(st.integers(0, 4), min_size=size, max_size=size), min_size=blocks, max_size=blocks)
    )
    step = torch.tensor([tau])
    start = torch.zeros(1, dtype=torch.long)
    state = BlockState(torch.full((1, size), MASK), start, start, MASK)
    mask = paired(state, Draft(torch.full_like(step, MASK), step, MASK)).mask[0]

    rows = [(w, kind, i) for w in range(blocks) for kind in "DM" for i in range(size)]
    for r, (qw, q, i) in enumerate(rows):
        for c, (kw, k, j) in enumerate(rows):
            ti, tj = tau[qw][i], tau[kw][j]
            same = {"DD": tj <= ti, "DM": tj > ti, "MD": tj < ti, "MM": tj >= ti}[q + k]
            visible = same if qw == kw else (kw < qw and k == "D")
            assert bool(mask[r, c]) == visible, (rows[r], rows[c])
