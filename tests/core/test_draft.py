"""A draft, its temporal step map, and the window gamma (method section 3)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simsd.core.draft import Draft, empty_draft, limit
from tests.core.cases import MASK, block_state, digits, draft, window
from tests.core.strategies import situations


def test_tokens_and_steps_of_different_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\(1, 1, 2\).*\(1, 1, 3\)"):
        Draft(torch.zeros(1, 1, 2), torch.zeros(1, 1, 3), MASK)


def test_positions_count_on_from_block_to_block():
    state = block_state("..", "..", start=[4, 10])
    assert state.positions(2).tolist() == [[[4, 5], [6, 7]], [[10, 11], [12, 13]]]


def test_the_empty_draft_keeps_what_is_known_and_guesses_nothing():
    empty = empty_draft(block_state("a.b", "..."), 2)
    assert window(empty.tokens) == ["a.b|...", "...|..."]
    assert empty.step.tolist() == [[[0, 1, 0], [1, 1, 1]], [[1, 1, 1], [1, 1, 1]]]
    assert not empty.drafted.any()
    assert empty.last.tolist() == [0, 0]


def test_drafted_complete_and_last_of_a_draft_by_hand():
    guess = draft(("abcd|e...", "0213|4555"), ("ab..|....", "0122|2222"))
    assert guess.drafted.long().tolist() == [[[0, 1, 1, 1], [1, 0, 0, 0]], [[0, 1, 0, 0], [0, 0, 0, 0]]]
    assert guess.complete.tolist() == [[True, False], [False, False]]
    assert guess.last.tolist() == [4, 1]


@pytest.mark.parametrize(
    ("tokens", "steps", "local"),
    [
        ("abcd|e...", "0213|4555", "0213|1222"),
        ("ab..|....", "0122|2222", "0122|1111"),
        ("abcd|....", "0000|1111", "0000|1111"),
        ("abcd|efgh|i...", "1122|3344|5666", "1122|1122|1222"),
        ("abcd|efgh|....", "1111|2222|3333", "1111|1111|1111"),
    ],
)
def test_local_steps_begin_again_in_each_block(tokens, steps, local):
    assert draft((tokens, steps)).local_step()[0].tolist() == digits(local, 0).tolist()


@given(situations())
def test_local_steps_are_dense_in_each_block(situation):
    _, guess = situation
    local = guess.local_step()
    for tokens, steps, mine in zip(*(t.flatten(0, 1) for t in (guess.tokens, guess.step, local)), strict=True):
        drafted = (tokens != MASK) & (steps > 0)
        order = sorted(set(steps[drafted].tolist()))
        assert mine[drafted].tolist() == [order.index(s) + 1 for s in steps[drafted].tolist()]
        assert (mine[steps == 0] == 0).all()
        assert (mine[tokens == MASK] == len(order) + 1).all()


@pytest.mark.parametrize(
    ("gamma", "tokens", "steps"),
    [
        (1, "a...|....", "1222|2222"),  # a first step longer than the window is cut, by position
        (2, "ab..|....", "1122|2222"),
        (3, "ab..|....", "1122|2222"),  # half of step 2 does not fit
        (4, "abcd|....", "1122|3333"),
        (5, "abcd|e...", "1122|3444"),
        (6, "abcd|ef..", "1122|3455"),
        (99, "abcd|ef..", "1122|3455"),
    ],
)
def test_the_window_keeps_whole_steps(gamma, tokens, steps):
    kept = limit(draft(("abcd|ef..", "1122|3455")), gamma)
    assert window(kept.tokens) == [tokens]
    assert kept.step[0].tolist() == digits(steps, 0).tolist()


@pytest.mark.parametrize(
    ("gamma", "tokens", "steps"), [(1, ".b..", "2122"), (2, ".bc.", "2112"), (3, "abc.", "2113"), (4, "abcd", "2112")]
)
def test_the_window_can_keep_half_a_step(gamma, tokens, steps):
    kept = limit(draft(("abcd", "2112")), gamma, whole_steps=False)
    assert window(kept.tokens) == [tokens]
    assert kept.step[0].tolist() == digits(steps, 0).tolist()


def test_the_window_does_not_count_known_tokens():
    kept = limit(draft(("abcd", "0021")), 1)
    assert window(kept.tokens) == ["ab.d"]
    assert kept.step[0].tolist() == [[0, 0, 2, 1]]


def test_a_window_of_no_tokens_is_refused():
    with pytest.raises(ValueError, match="window of 0 tokens"):
        limit(draft(("ab", "12")), 0)


def naive_limit(tokens: list[int], steps: list[int], gamma: int, whole: bool) -> tuple[list[int], list[int]]:
    """One sequence, plain Python."""
    order = sorted((s, i) for i, (t, s) in enumerate(zip(tokens, steps, strict=True)) if s > 0 and t != MASK)
    keep = order[:gamma]
    cut = {s for s, _ in order[gamma:]}
    if whole:
        keep = [(s, i) for s, i in keep if s not in cut or s == 1]
    places = {i for _, i in keep}
    last = max((s for s, _ in keep), default=0)
    known = [s == 0 for s in steps]
    return (
        [t if known[i] or i in places else MASK for i, t in enumerate(tokens)],
        [s if known[i] or i in places else last + 1 for i, s in enumerate(steps)],
    )


@given(situations(), st.integers(1, 16), st.booleans())
def test_the_window_equals_a_plain_loop(situation, gamma, whole):
    _, guess = situation
    kept = limit(guess, gamma, whole)
    for row in range(len(guess.tokens)):
        tokens, steps = naive_limit(
            guess.tokens[row].flatten().tolist(), guess.step[row].flatten().tolist(), gamma, whole
        )
        assert kept.tokens[row].flatten().tolist() == tokens
        assert kept.step[row].flatten().tolist() == steps
