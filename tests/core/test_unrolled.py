"""The unrolled layout, pending blocks and prefill, against matrices derived by hand (method sections 4b, 6)."""

from __future__ import annotations

import pytest
import torch

from simsd.core.layout import Layout, block_causal, unrolled, with_pending
from simsd.core.states import build, codes, trim
from tests.core.cases import block_state, draft, ids, letters, matrix, states


def copies(mask: torch.Tensor, size: int) -> str:
    """The mask among whole copies, one line a copy; fails where a copy is not seen as a whole."""
    blocks = mask.unfold(0, size, size).unfold(1, size, size)
    assert torch.equal(blocks.flatten(2).any(-1), blocks.flatten(2).all(-1))
    return "\n".join("".join("1" if seen else "0" for seen in row) for row in blocks.flatten(2).any(-1))


def chain(state, guess):
    size = guess.tokens.shape[2]
    return trim(build(state, guess, [codes("chain", size)] * guess.tokens.shape[1]))


def test_a_chain_in_one_block_is_a_row_of_copies_that_see_only_themselves():
    state = block_state("...", start=6)
    layout = unrolled(state, chain(state, draft(("abc", "213"))))
    assert letters(layout.ids[0]) == "..." + ".b." + "ab."
    assert layout.positions.tolist() == [[6, 7, 8] * 3]
    expected = """
        111 000 000
        111 000 000
        111 000 000
        000 111 000
        000 111 000
        000 111 000
        000 000 111
        000 000 111
        000 000 111
    """
    assert layout.mask[0].long().tolist() == matrix(expected).long().tolist()
    assert layout.judge.tolist() == [list(range(9))]


def test_copies_of_the_second_block_also_see_the_finished_copy_of_the_first():
    state = block_state("..", start=4)
    layout = unrolled(state, chain(state, draft(("ab|c.", "21|34"))))
    # the finished copy of block 0 stands in front; then two copies of block 0 and two of block 1
    assert letters(layout.ids[0]) == "ab" + ".." + ".b" + ".." + "c."
    assert layout.positions.tolist() == [[4, 5, 4, 5, 4, 5, 6, 7, 6, 7]]
    expected = """
        11 00 00 00 00
        11 00 00 00 00
        00 11 00 00 00
        00 11 00 00 00
        00 00 11 00 00
        00 00 11 00 00
        11 00 00 11 00
        11 00 00 11 00
        11 00 00 00 11
        11 00 00 00 11
    """
    assert layout.mask[0].long().tolist() == matrix(expected).long().tolist()
    assert layout.judge.tolist() == [[2, 3, 4, 5, 6, 7, 8, 9]]  # the finished copy is not judged


def test_a_third_block_sees_both_finished_copies_and_the_second_sees_the_first():
    state = block_state(".")
    layout = unrolled(state, chain(state, draft(("a|b|c", "1|2|3"))))
    assert letters(layout.ids[0]) == "ab..."
    expected = """
        1 0 0 0 0
        1 1 0 0 0
        0 0 1 0 0
        1 0 0 1 0
        1 1 0 0 1
    """
    assert layout.mask[0].long().tolist() == matrix(expected).long().tolist()
    assert layout.positions.tolist() == [[0, 1, 0, 1, 2]]


def test_two_candidates_for_a_block_each_have_children_of_their_own():
    tree = states(
        ("ab", 0, -1, 2),  # 0: one finished copy of block 0
        ("cd", 0, -1, 2),  # 1: the other
        ("..", 0, -1, 0),  # 2: root
        ("a.", 0, -1, 1),  # 3
        ("..", 1, 0, 0),  # 4: block 1 after "ab"
        ("e.", 1, 0, 1),  # 5
        ("..", 1, 1, 0),  # 6: block 1 after "cd"
        (".f", 1, 1, 1),  # 7
        root=2,
        in_place=0,
    )
    layout = unrolled(block_state(".."), tree)
    assert copies(layout.mask[0], 2).split() == [
        "10000000",
        "01000000",
        "00100000",
        "00010000",
        "10001000",
        "10000100",
        "01000010",
        "01000001",
    ]
    assert layout.judge.shape == (1, 16)


def test_grandchildren_see_their_own_line_of_ancestors_only():
    tree = states(
        ("ab", 0, -1, 2),  # 0
        ("cd", 0, -1, 2),  # 1
        ("ef", 1, 0, 2),  # 2: after "ab"
        ("ef", 1, 1, 2),  # 3: the same tokens after "cd"
        ("gh", 1, 1, 2),  # 4: another block after "cd"
        ("..", 2, 2, 0),  # 5
        ("..", 2, 3, 0),  # 6
        ("..", 2, 4, 0),  # 7
        ("ij", 2, 4, 2),  # 8
        ("..", 3, 8, 0),  # 9: a fourth block
        root=0,
    )
    layout = unrolled(block_state("..", start=10), tree)
    assert copies(layout.mask[0], 2).split() == [
        "1000000000",
        "0100000000",
        "1010000000",
        "0101000000",
        "0100100000",
        "1010010000",
        "0101001000",
        "0100100100",
        "0100100010",
        "0100100011",
    ]
    assert layout.positions[0, ::2].tolist() == [10, 10, 12, 12, 12, 14, 14, 14, 14, 16]


def test_a_column_that_only_fills_up_is_seen_by_no_other_copy():
    state = block_state("..", "..")
    guess = draft(("ab|..", "12|33"), ("ab|cd", "12|34"))
    batch = trim(build(state, guess, [codes("chain", 2)] * 2))
    layout = unrolled(state, batch)
    # columns: finished, two of block 0, two of block 1; sequence 0 uses only those of block 0
    assert batch.valid.tolist() == [[False, True, True, False, False], [True] * 5]
    assert copies(layout.mask[0], 2).split() == ["10000", "01000", "00100", "00010", "00001"]
    assert copies(layout.mask[1], 2).split() == ["10000", "01000", "00100", "10010", "10001"]


def small_layout(batch: int = 1) -> Layout:
    """Two rows that see: the first itself, the second both."""
    mask = matrix("10\n11").expand(batch, -1, -1)
    rows = torch.arange(2).expand(batch, -1)
    return Layout(torch.tensor([[7, 8]] * batch), rows + 20, mask, rows, torch.zeros(batch, dtype=torch.long))


def test_one_pending_block_sees_itself_and_is_seen_by_every_row():
    layout = with_pending(small_layout(), torch.tensor([[ids("ab")]]), torch.tensor([1]), torch.tensor([20]))
    assert layout.ids.tolist() == [[0, 1, 7, 8]]
    assert layout.positions.tolist() == [[18, 19, 20, 21]]
    expected = """
        11 00
        11 00
        11 10
        11 11
    """
    assert layout.mask[0].long().tolist() == matrix(expected).long().tolist()
    assert layout.judge.tolist() == [[2, 3]]
    assert layout.skip.tolist() == [0]


def test_several_pending_blocks_see_each_other_block_causally():
    pending = torch.tensor([[ids("ab"), ids("cd"), ids("ef")]])
    layout = with_pending(small_layout(), pending, torch.tensor([3]), torch.tensor([20]))
    assert layout.positions.tolist() == [[14, 15, 16, 17, 18, 19, 20, 21]]
    expected = """
        11 00 00 00
        11 00 00 00
        11 11 00 00
        11 11 00 00
        11 11 11 00
        11 11 11 00
        11 11 11 10
        11 11 11 11
    """
    assert layout.mask[0].long().tolist() == matrix(expected).long().tolist()


def test_uneven_pending_counts_are_filled_up_in_front_with_rows_outside_everything():
    pending = torch.tensor([[ids(".."), ids("ab")], [ids("cd"), ids("ef")], [ids(".."), ids("..")]])
    layout = with_pending(small_layout(3), pending, torch.tensor([1, 2, 0]), torch.tensor([2, 20, 0]))
    assert layout.skip.tolist() == [2, 0, 4]
    assert layout.judge.tolist() == [[4, 5]] * 3
    one = """
        00 00 00
        00 00 00
        00 11 00
        00 11 00
        00 11 10
        00 11 11
    """
    two = """
        11 00 00
        11 00 00
        11 11 00
        11 11 00
        11 11 10
        11 11 11
    """
    none = """
        00 00 00
        00 00 00
        00 00 00
        00 00 00
        00 00 10
        00 00 11
    """
    for row, expected in enumerate((one, two, none)):
        assert layout.mask[row].long().tolist() == matrix(expected).long().tolist()
    assert layout.positions[0, 2:].tolist() == [0, 1, 20, 21]
    assert layout.positions[1].tolist() == [16, 17, 18, 19, 20, 21]
    assert bool((layout.positions >= 0).all())  # fill-up rows too: they index the RoPE table


def test_without_pending_blocks_the_layout_is_unchanged():
    layout = small_layout()
    empty = torch.zeros(1, 0, 2, dtype=torch.long)
    assert with_pending(layout, empty, torch.tensor([0]), torch.tensor([20])) is layout


@pytest.mark.parametrize(
    ("length", "size", "expected"),
    [
        (4, 2, "1100 1100 1111 1111"),
        (4, 1, "1000 1100 1110 1111"),
        (4, 4, "1111 1111 1111 1111"),
        (6, 3, "111000 111000 111000 111111 111111 111111"),
    ],
)
def test_prefill_is_bidirectional_inside_a_block_and_causal_between_blocks(length, size, expected):
    layout = block_causal(torch.arange(length)[None] + 50, torch.tensor([12]), size)
    assert layout.mask[0].long().tolist() == matrix(expected.replace(" ", "\n")).long().tolist()
    assert layout.positions.tolist() == [list(range(12, 12 + length))]
    assert layout.judge.shape == (1, 0)
    assert layout.ids.tolist() == [list(range(50, 50 + length))]
