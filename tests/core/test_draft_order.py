"""Acceptance in the draft's temporal order, and rejection's law in closed form (method section 5)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simsd.core.acceptance import Outcome, in_draft_order, match, rejection
from simsd.core.draft import Draft
from simsd.core.sampling import Drawn
from tests.core.cases import block_state, digits, draft, ids, window


def judge(
    state: str,
    guess: tuple[str, str],
    own: str,
    keep: str,
    bonus: str | None = None,
    judged: str | None = None,
    taken: int = 0,
) -> Outcome:
    """own: the target's tokens; keep, bonus, judged: rows of 0 and 1."""
    made = draft(guess)
    free = "".join("|" if c == "|" else "0" for c in guess[0])
    every = free.replace("0", "1")
    return in_draft_order(
        block_state(state, taken=taken),
        made,
        torch.tensor([[ids(part) for part in own.split("|")]]),
        digits(keep, 0)[None].bool(),
        digits(bonus or free, 0)[None].bool(),
        digits(judged or every, 0)[None].bool(),
    )


def expect(outcome: Outcome, tokens: str, taken: str, accepted: str, entry: int = 0) -> None:
    assert window(outcome.tokens) == [tokens]
    assert outcome.taken[0].tolist() == digits(taken, 0).tolist()
    assert outcome.accepted[0].long().tolist() == digits(accepted, 0).tolist()
    new = outcome.taken >= 0
    blocks = torch.arange(new.shape[1])[None, :, None].expand_as(new)
    assert torch.equal(outcome.source, torch.where(new, blocks, -1))
    assert int(outcome.entry) == entry


def test_a_draft_that_is_kept_as_a_whole_is_committed_as_a_whole():
    expect(judge("....", ("abcd", "2143"), "zzzz", "1111"), "abcd", "1032", "1111")


def test_the_first_failure_by_step_not_by_position_ends_the_draft():
    # position 0 is drafted last; position 3, drafted second, fails
    expect(judge("....", ("abcd", "4132"), "wxyz", "1110"), ".b.z", "-0-1", "0100")


def test_what_is_kept_after_a_failure_does_not_count():
    expect(judge("...", ("abc", "123"), "xyz", "101"), "ay.", "01-", "100")


def test_all_verdicts_of_the_failing_step_count():
    expect(judge("....", ("abcd", "1222"), "wxyz", "1010"), "axcz", "0111", "1010")


def test_known_tokens_stay_whatever_the_verdicts_say():
    expect(judge("a..d", ("abcd", "0210"), "wxyz", "0000", taken=2), "a.yd", "--2-", "0000")


def test_holes_are_committed_where_they_are():
    expect(judge(".b..", ("abcd", "3012"), "wxyz", "0010", taken=1), ".bcz", "--12", "0010")


def test_the_bonus_step_follows_a_draft_that_is_kept_as_a_whole():
    expect(judge("....", ("ab..", "2133"), "wxyz", "1100", bonus="0011"), "abyz", "1022", "1100", entry=0)


def test_there_is_no_bonus_after_a_failure():
    expect(judge("....", ("ab..", "2133"), "wxyz", "0100", bonus="0011"), "wb..", "10--", "0100")


def test_a_bonus_needs_a_row_that_judged_it():
    kept = judge("....", ("ab..", "2133"), "wxyz", "1100", bonus="0011", judged="1110")
    expect(kept, "aby.", "102-", "1100")


def test_a_bonus_never_falls_on_a_drafted_position():
    expect(judge("..", ("ab", "12"), "yz", "11", bonus="11"), "ab", "01", "11")


def test_an_empty_draft_is_one_ordinary_step():
    expect(
        judge(".b..", ("....".replace("....", ".b.."), "1011"), "wxyz", "0000", bonus="1001", taken=1),
        "wb.z",
        "1--1",
        "0000",
    )


def test_a_kept_block_leads_into_the_next_and_steps_begin_again():
    kept = judge("a.", ("ab|cd", "01|32"), "wx|yz", "01|11", taken=1)
    expect(kept, "ab|cd", "-1|10", "01|11", entry=1)
    assert int(kept.finished) == 2


def test_a_failure_in_the_second_block_keeps_the_first():
    failed = judge("..", ("ab|cd", "11|32"), "wx|yz", "11|10", bonus="00|00")
    expect(failed, "ab|.z", "00|-0", "11|00", entry=1)


def test_a_failure_in_the_first_block_leaves_the_second_masked():
    failed = judge("..", ("ab|cd", "12|34"), "wx|yz", "01|11")
    expect(failed, "w.|..", "0-|--", "00|00", entry=0)


def test_a_correction_of_the_last_token_finishes_the_block_but_not_the_next():
    failed = judge("..", ("ab|cd", "12|34"), "wx|yz", "10|11")
    expect(failed, "ax|..", "01|--", "10|00", entry=1)
    assert int(failed.finished) == 1


def test_the_bonus_of_a_complete_block_is_the_first_step_of_the_next():
    kept = judge("..", ("ab|..", "12|33"), "wx|yz", "11|00", bonus="00|01")
    expect(kept, "ab|.z", "01|-0", "11|00", entry=1)


def test_match_keeps_what_is_the_targets_own_token():
    guess = draft(("ab|cd", "12|34"))
    token = torch.tensor([[ids("ax"), ids("yd")]])
    assert match(guess, Drawn(token, token, None)).long().tolist() == [[[1, 0], [0, 1]]]


laws = st.integers(2, 5).flatmap(
    lambda size: st.tuples(
        *[st.lists(st.sampled_from([0, 0, 1, 2, 3, 7, 20]), min_size=size, max_size=size).filter(any) for _ in range(2)]
    )
)


def law(weights: list[int]) -> torch.Tensor:
    found = torch.tensor(weights, dtype=torch.float64)
    return found / found.sum()


def verdict(
    token: int, p: torch.Tensor, q: torch.Tensor | None, chance: float, noise: torch.Tensor, drafted: bool = True
) -> tuple[bool, int]:
    """(kept, the other token) of a draft of one position."""
    proposal = None if q is None else q.view(1, 1, 1, -1)
    guess = Draft(torch.full((1, 1, 1), token), torch.full((1, 1, 1), int(drafted)), -1, proposal)
    keep, other = rejection(
        guess,
        p.view(1, 1, 1, -1),
        torch.full((1, 1, 1), chance, dtype=p.dtype),
        noise.view(1, 1, 1, -1),
    )
    return bool(keep), int(other)


def kept_probability(token: int, p: torch.Tensor, q: torch.Tensor | None) -> float:
    """The threshold that `chance` must stay under, found by bisection: the probability that the token is kept."""
    none = torch.zeros_like(p)
    low, high = 0.0, 1.0
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (middle, high) if verdict(token, p, q, middle, none)[0] else (low, middle)
    return low


def other_law(
    token: int, p: torch.Tensor, q: torch.Tensor | None, expected: torch.Tensor, drafted: bool = True
) -> bool:
    """Whether the other token follows `expected`. By the Gumbel-max trick it is argmax(log r + noise) of a law r;
    with noise -log(expected) all tokens tie, and a hair more decides, if and only if r is proportional to it."""
    support = expected > 0
    level = torch.where(support, -expected.log(), 50.0)
    for winner in support.nonzero().flatten().tolist():
        noise = level.clone()
        noise[winner] += 1e-9
        if verdict(token, p, q, 0.5, noise, drafted)[1] != winner:
            return False
    return True


@given(laws)
def test_rejection_reproduces_the_targets_law_exactly(pair):
    p, q = law(pair[0]), law(pair[1])
    residual = (p - q).clamp(min=0)
    committed = torch.zeros_like(p)
    for token in range(len(p)):
        if q[token] == 0:
            continue
        keep = kept_probability(token, p, q)
        committed[token] += q[token] * keep
        if keep < 1 - 1e-9:
            other = residual / residual.sum()
            assert other_law(token, p, q, other)
            committed += q[token] * (1 - keep) * other
    assert torch.allclose(committed, p, atol=1e-10)


@given(laws)
def test_a_draft_that_is_certain_of_itself_is_kept_with_the_targets_probability(pair):
    p = law(pair[0])
    for token in range(len(p)):
        keep = kept_probability(token, p, None)
        assert keep == pytest.approx(float(p[token]), abs=1e-10)
        committed = torch.zeros_like(p)
        committed[token] = keep
        if keep < 1 - 1e-9:
            other = p.clone()
            other[token] = 0
            other /= other.sum()
            assert other_law(token, p, None, other)
            committed += (1 - keep) * other
        assert torch.allclose(committed, p, atol=1e-10)


@given(laws)
def test_where_nothing_was_drafted_the_token_follows_the_target(pair):
    p, q = law(pair[0]), law(pair[1])
    assert other_law(0, p, q, p, drafted=False)


def test_the_check_of_the_residual_notices_another_law():
    p, q = law([3, 2, 1]), law([1, 3, 2])
    residual = (p - q).clamp(min=0)
    assert other_law(1, p, q, residual / residual.sum())
    assert not other_law(1, p, q, p)


def test_a_draft_that_is_the_target_is_always_kept():
    p = law([1, 2, 3, 4])
    for token in range(4):
        assert verdict(token, p, p, 1 - 2.0**-24, torch.zeros(4, dtype=torch.float64))[0]


def test_a_token_that_the_target_forbids_is_never_kept_nor_drawn():
    p, q = law([0, 1, 1]), law([8, 1, 1])
    noise = torch.tensor([16.0, 0.0, 0.1], dtype=torch.float64)
    assert verdict(0, p, q, 2.0**-24, noise) == (False, 2)


def test_rounding_that_leaves_no_residual_still_gives_a_token_of_the_target():
    p = law([0, 1, 3])
    kept, other = verdict(2, p, p, 0.999, torch.zeros(3, dtype=torch.float64))
    assert kept and other in (1, 2)
