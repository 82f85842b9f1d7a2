"""Which states stand side by side in one pass (method section 4b)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simsd.core.draft import BlockState, Draft
from simsd.core.states import KINDS, States, build, codes, reach, trim
from tests.core.cases import MASK, block_state, draft, letters, states
from tests.core.strategies import situations


def bits(kind: str, steps: int, limit: int = 32) -> list[str]:
    return ["".join("1" if b else "0" for b in row) for row in codes(kind, steps, limit).tolist()]


def inversions(code: str) -> int:
    """Pairs of steps in the wrong order: an earlier one has not happened, a later one has."""
    return sum(code[i] == "0" and code[j] == "1" for j in range(len(code)) for i in range(j))


def test_a_chain_is_the_prefixes():
    assert bits("chain", 3) == ["000", "100", "110", "111"]


def test_swaps_add_the_states_between_two_exchanged_neighbours():
    assert bits("swaps", 3) == ["000", "100", "110", "111", "010", "101"]
    assert bits("swaps", 1) == ["0", "1"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_steps_leave_the_current_state_alone(kind):
    assert codes(kind, 0).shape == (1, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", range(1, 9))
def test_codes_are_distinct_begin_empty_and_hold_the_chain(kind, steps):
    found = bits(kind, steps)
    assert found[0] == "0" * steps
    assert len(set(found)) == len(found)
    assert set(bits("chain", steps)) <= set(found)


@pytest.mark.parametrize("steps", range(1, 7))
def test_swaps_are_the_chain_and_all_codes_of_one_inversion(steps):
    every = ["".join(code) for code in product("01", repeat=steps)]
    assert sorted(bits("swaps", steps)) == sorted(code for code in every if inversions(code) <= 1)


@pytest.mark.parametrize("steps", range(1, 7))
@pytest.mark.parametrize("limit", [1, 2, 5, 7, 8, 16, 31, 32, 33, 64, 200])
def test_subsets_are_the_codes_of_fewest_inversions(steps, limit):
    every = ["".join(code) for code in product("01", repeat=steps)]
    found = bits("subsets", steps, limit)
    size = min(max(limit, steps + 1), 2**steps)
    assert len(found) == size
    assert set(found) <= set(every)
    assert [inversions(c) for c in found] == sorted(inversions(c) for c in every)[:size]


def test_an_unknown_kind_names_those_there_are():
    with pytest.raises(ValueError, match=r"'tree'.*chain, swaps, subsets"):
        codes("tree", 2)


def test_fields_of_the_wrong_shape_are_refused():
    good = states(("..", 0, -1, 0))
    with pytest.raises(ValueError, match="parent is"):
        States(good.tokens, good.block, good.parent[:, :0], good.taken, good.valid, MASK)


def test_trimming_follows_the_parents_to_their_new_places():
    rows = states(("xy", 0, -1, 1), ("ab", 0, -1, 1), ("..", 0, -1, 0), ("x.", 0, -1, 1), ("..", 1, 1, 0), root=2)
    used = torch.tensor([[False, True, True, False, True]])
    found = trim(replace(rows, valid=used, in_place=1))
    assert [letters(t) for t in found.tokens[0]] == ["ab", "..", ".."]
    assert found.parent.tolist() == [[-1, -1, 0]]
    assert (found.root, found.in_place) == (1, 0)


Row = tuple[str, int, str | None, int]


def described(found: States, row: int = 0) -> list[Row]:
    """The valid states of one sequence: tokens, block, tokens of the parent, steps taken."""
    every = [letters(t) for t in found.tokens[row]]
    return [
        (every[c], int(found.block[row, c]), None if (up := int(found.parent[row, c])) < 0 else every[up], int(taken))
        for c, taken in enumerate(found.taken[row])
        if found.valid[row, c]
    ]


def test_states_of_one_block_are_the_codes_but_the_finished_one():
    found = build(block_state("a...", taken=1), draft(("abcd", "0312")), [codes("chain", 3)])
    assert described(found) == [("a...", 0, None, 1), ("a.c.", 0, None, 2), ("a.cd", 0, None, 3)]
    assert (found.root, found.in_place, found.blocks) == (0, 0, 1)


def test_positions_of_one_step_appear_together():
    found = build(block_state("...."), draft(("abcd", "1221")), [codes("subsets", 4)])
    assert {r[0] for r in described(found)} == {"....", "a..d", ".bc."}


def test_undrafted_positions_stay_masked_in_every_state():
    found = build(block_state("...."), draft(("ab..", "2133")), [codes("subsets", 4)])
    assert {r[0] for r in described(found)} == {"....", ".b..", "a...", "ab.."}


def test_the_second_block_hangs_on_the_finished_first_one():
    found = trim(build(block_state("a.", taken=1), draft(("ab|c.", "01|23")), [codes("chain", 2)] * 2))
    assert described(found) == [("ab", 0, None, 2), ("a.", 0, None, 1), ("..", 1, "ab", 0), ("c.", 1, "ab", 1)]
    assert (found.root, found.in_place) == (1, 1)


def test_a_block_that_nobody_drafts_into_costs_nothing():
    found = trim(build(block_state(".."), draft(("ab|..", "12|33")), [codes("chain", 2)] * 2))
    assert described(found) == [("..", 0, None, 0), ("a.", 0, None, 1)]
    assert (found.root, found.in_place, found.tokens.shape[1]) == (0, 0, 2)


def test_sequences_of_a_batch_share_columns_and_mark_those_they_do_not_use():
    guess = draft(("ab|cd", "12|34"), ("a.|..", "12|22"))
    found = trim(build(block_state("..", ".."), guess, [codes("chain", 2)] * 2))
    assert described(found, 0) == [
        ("ab", 0, None, 2),
        ("..", 0, None, 0),
        ("a.", 0, None, 1),
        ("..", 1, "ab", 0),
        ("c.", 1, "ab", 1),
    ]
    assert described(found, 1) == [("..", 0, None, 0), ("a.", 0, None, 1)]


def expected(state_row: list[int], taken: int, tokens: list[list[int]], steps: list[list[int]], kind: str) -> set[Row]:
    """Plain Python, from the definition: all states that the kind names, in every block that is drafted into."""
    size, rows, parent = len(state_row), set(), None
    for w, (block, tau) in enumerate(zip(tokens, steps, strict=True)):
        drafted = sorted({s for t, s in zip(block, tau, strict=True) if s > 0 and t != MASK})
        if w > 0 and not drafted:
            break
        base = taken if w == 0 else 0
        known = state_row if w == 0 else [MASK] * size
        for code in bits(kind, len(drafted)):
            shown = {s for s, b in zip(drafted, code, strict=True) if b == "1"}
            copy = [t if s in shown else k for t, s, k in zip(block, tau, known, strict=True)]
            if MASK in copy:
                rows.add((letters(copy), w, parent, base + len(shown)))
        if MASK in block:
            break
        if w + 1 < len(tokens) and any(s > 0 and t != MASK for t, s in zip(tokens[w + 1], steps[w + 1], strict=True)):
            rows.add((letters(block), w, parent, base + len(drafted)))
        parent = letters(block)
    return rows


@given(situations(max_size=4), st.sampled_from(KINDS), st.booleans())
def test_build_equals_the_definition(situation, kind, trimmed):
    state, guess = situation
    size, blocks = state.tokens.shape[1], guess.tokens.shape[1]
    found = build(state, guess, [codes(kind, size)] * blocks)
    if trimmed:
        found = trim(found)
        assert bool(found.valid.any(0).all())
    for row in range(len(state.tokens)):
        rows = described(found, row)
        assert len(set(rows)) == len(rows)
        assert set(rows) == expected(
            state.tokens[row].tolist(),
            int(state.taken[row]),
            guess.tokens[row].tolist(),
            guess.step[row].tolist(),
            kind,
        )
        assert found.tokens[row, found.root].tolist() == state.tokens[row].tolist()
    assert found.in_place <= found.root


@given(situations(max_size=4))
def test_finished_states_stand_in_front_block_by_block(situation):
    state, guess = situation
    found = trim(build(state, guess, [codes("swaps", state.tokens.shape[1])] * guess.tokens.shape[1]))
    front = found.in_place
    finished = found.finished & found.valid
    assert not finished[:, front:].any()
    assert torch.equal(found.block[:, :front], torch.arange(front).expand_as(found.block[:, :front]))


def steps_in(found: States, now: BlockState, guess: Draft, row: int) -> int:
    """How many states in a row of those that the draft goes through are in the set, the current one first."""
    there = {
        (int(found.block[row, at]), letters(found.tokens[row, at]))
        for at in range(found.in_place, found.tokens.shape[1])
        if found.valid[row, at]
    }
    last = int(guess.last[row])
    for step in range(last + 1):
        shown = torch.where(guess.step[row] <= step, guess.tokens[row], MASK)
        block = next((w for w, tokens in enumerate(shown) if MASK in tokens.tolist()), None)
        if block is None or (block, letters(shown[block])) not in there:
            return step
    return last + 1


@given(situations(), st.sampled_from(KINDS), st.data())
def test_a_walk_that_agrees_with_the_draft_goes_as_far_as_the_set(situation, kind, data):
    now, guess = situation
    tables = [codes(kind, guess.tokens.shape[2]) for _ in range(guess.tokens.shape[1])]
    found = build(now, guess, tables)
    columns = found.valid.shape[1]
    lost = [data.draw(st.lists(st.booleans(), min_size=columns, max_size=columns)) for _ in now.start]
    keep = ~torch.tensor(lost)
    keep[:, found.root] = True
    found = trim(replace(found, valid=found.valid & keep))
    assert reach(now, guess, found).tolist() == [steps_in(found, now, guess, row) for row in range(len(now.start))]


def test_what_follows_the_draft_is_reached_where_the_draft_leaves_masks():
    now = block_state("a...", taken=1)
    guess = draft(("abc.", "0123"))  # two steps, then the target's own
    assert reach(now, guess, build(now, guess, [codes("chain", 4)])).tolist() == [3]
    assert reach(now, guess, build(now, guess, [codes("chain", 4)[:2]])).tolist() == [2]


def test_a_finished_window_is_reached_through_all_its_blocks():
    now = block_state("....")
    guess = draft(("abcd|efgh", "1234|5678"))
    assert reach(now, guess, build(now, guess, [codes("chain", 4)] * 2)).tolist() == [8]
    assert reach(now, guess, build(now, guess, [codes("chain", 4)])).tolist() == [4]
