"""The walk over a set of states, on sets and steps written by hand (method section 5, `replay`)."""

from __future__ import annotations

import pytest
import torch

from simsd.core.acceptance import Outcome, replay
from simsd.core.states import States, build, codes, trim
from tests.core.cases import MASK, block_state, digits, draft, ids, letters, states, window


def walk(state, found: States, *steps: str, timed: bool = False, depth: int | None = None) -> Outcome:
    """`steps`: what the target puts where from each state, a dot where it reveals nothing ('.b' puts b at place 1)."""
    put = torch.tensor([[ids(s) for s in steps]])
    revealed = put != MASK
    token = torch.where(revealed, put, 0)  # what is drawn elsewhere must not matter
    size = found.tokens.shape[2]
    return replay(state, found, token, revealed, depth or found.blocks * size + 1, timed)


def shown(outcome: Outcome) -> dict[str, object]:
    return {
        "tokens": window(outcome.tokens)[0],
        "taken": outcome.taken[0].tolist(),
        "source": outcome.source[0].tolist(),
        "accepted": outcome.accepted[0].long().tolist(),
        "entry": int(outcome.entry[0]),
        "finished": int(outcome.finished[0]),
    }


CHAIN = (("....", 0, -1, 0), ("a...", 0, -1, 1), ("ab..", 0, -1, 2), ("abc.", 0, -1, 3))


def expect(outcome: Outcome, tokens: str, taken: str, source: str, accepted: str, entry: int, finished: int) -> None:
    """Rows of digits, '-' for -1, bars between blocks."""
    assert shown(outcome) == {
        "tokens": tokens,
        "taken": digits(taken, 0).tolist(),
        "source": digits(source, 0).tolist(),
        "accepted": digits(accepted, 0).tolist(),
        "entry": entry,
        "finished": finished,
    }


def test_a_set_of_one_state_is_one_ordinary_step():
    outcome = walk(block_state(".b.", taken=1), states((".b.", 0, -1, 1)), "..c")
    expect(outcome, ".bc", "--1", "--0", "000", 0, 0)


def test_a_chain_that_the_target_agrees_with_is_walked_to_its_end_and_one_step_further():
    outcome = walk(block_state("...."), states(*CHAIN), "a...", ".b..", "..c.", "...d")
    expect(outcome, "abcd", "0123", "0123", "1110", 3, 1)


def test_another_token_stops_the_walk_as_a_free_correction():
    outcome = walk(block_state("...."), states(*CHAIN), "a...", ".x..", "..c.", "...d")
    expect(outcome, "ax..", "01--", "01--", "1000", 1, 0)


def test_another_position_stops_the_walk_and_leaves_a_hole():
    outcome = walk(block_state("...."), states(*CHAIN), "a...", "..c.", "..c.", "...d")
    expect(outcome, "a.c.", "0-1-", "0-1-", "1000", 1, 0)


def test_two_tokens_where_the_chain_has_two_steps_skip_a_state_of_an_untimed_walk():
    steps = ("ab..", "z...", "..c.", "...d")
    untimed = walk(block_state("...."), states(*CHAIN), *steps)
    expect(untimed, "abcd", "0012", "0023", "1110", 3, 1)  # the steps of the walk are counted, not the chain's
    timed = walk(block_state("...."), states(*CHAIN), *steps, timed=True)
    expect(timed, "ab..", "00--", "00--", "0000", 0, 0)  # "ab.." after one step is not "ab.." after two


def test_a_timed_walk_follows_states_reached_in_the_same_number_of_steps():
    outcome = walk(block_state("....", taken=0), states(*CHAIN), "a...", ".b..", "..c.", "...d", timed=True)
    expect(outcome, "abcd", "0123", "0123", "1110", 3, 1)


def test_the_walk_goes_on_from_a_state_with_holes():
    found = states(("a..d", 0, -1, 2), ("a.cd", 0, -1, 3))
    outcome = walk(block_state("a..d", taken=2), found, "..c.", ".b..")
    expect(outcome, "abcd", "-32-", "-10-", "0010", 1, 1)


def test_the_other_order_of_two_positions_is_followed_where_the_set_holds_it():
    found = states(*CHAIN, (".b..", 0, -1, 1))
    outcome = walk(block_state("...."), found, ".b..", "z...", "..c.", "...d", "a...")
    expect(outcome, "abcd", "1023", "4023", "1110", 3, 1)


def test_a_second_candidate_token_is_followed():
    found = states(("...", 0, -1, 0), ("a..", 0, -1, 1), ("x..", 0, -1, 1), ("x.y", 0, -1, 2))
    outcome = walk(block_state("..."), found, "x..", ".b.", "..y", ".w.")
    expect(outcome, "xwy", "021", "032", "101", 3, 1)


def test_a_finish_outside_the_set_ends_the_walk_with_a_finished_block():
    found = states(("..", 0, -1, 0), (".b", 0, -1, 1), ("ab", 0, -1, 2), ("..", 1, 2, 0), root=0)
    outcome = walk(block_state(".."), found, ".b", "x.", "..", "c.")
    expect(outcome, "xb|..", "10|--", "10|--", "01|00", 1, 1)


TWO_BLOCKS = (("ab", 0, -1, 2), ("..", 0, -1, 0), ("a.", 0, -1, 1), ("..", 1, 0, 0), (".d", 1, 0, 1))


def test_a_finished_block_of_the_set_leads_into_the_next_block():
    found = states(*TWO_BLOCKS, root=1, in_place=1)
    outcome = walk(block_state(".."), found, "..", "a.", ".b", ".d", "c.")
    expect(outcome, "ab|cd", "01|10", "12|43", "11|01", 4, 2)


def test_one_step_that_finishes_the_block_leads_into_the_next_block():
    found = states(*TWO_BLOCKS, root=1, in_place=1)
    outcome = walk(block_state(".."), found, "..", "ab", ".b", ".d", "c.")
    expect(outcome, "ab|cd", "00|10", "11|43", "11|01", 4, 2)


def test_a_walk_stops_at_the_first_step_of_the_next_block():
    found = states(*TWO_BLOCKS, root=1, in_place=1)
    outcome = walk(block_state(".."), found, "..", "a.", ".b", "c.", "c.")
    expect(outcome, "ab|c.", "01|0-", "12|3-", "11|00", 3, 1)


def test_steps_already_taken_count_in_the_first_block_only():
    found = states(("ab", 0, -1, 3), ("a.", 0, -1, 2), ("..", 1, 0, 0), (".d", 1, 0, 1), root=1, in_place=1)
    outcome = walk(block_state("a.", taken=2), found, "..", ".b", ".d", "c.", timed=True)
    expect(outcome, "ab|cd", "-2|10", "-1|32", "01|01", 3, 2)


def test_an_alternative_block_leads_to_its_own_children():
    found = states(
        ("ab", 0, -1, 1),  # 0
        ("xy", 0, -1, 1),  # 1
        ("..", 0, -1, 0),  # 2: root
        ("..", 1, 0, 0),  # 3: after "ab"
        ("c.", 1, 0, 1),  # 4
        ("..", 1, 1, 0),  # 5: after "xy"
        ("c.", 1, 1, 1),  # 6
        root=2,
    )
    steps = ["..", "..", "xy", "z.", ".z", "c.", ".d"]
    expect(walk(block_state(".."), found, *steps), "xy|cd", "00|01", "22|56", "11|10", 6, 2)
    steps[2] = "ab"
    expect(walk(block_state(".."), found, *steps), "ab|z.", "00|0-", "22|3-", "11|00", 3, 1)


def test_a_state_under_another_parent_is_no_continuation():
    found = states(("ab", 0, -1, 1), ("xy", 0, -1, 1), ("..", 0, -1, 0), ("..", 1, 0, 0), ("c.", 1, 1, 1), root=2)
    outcome = walk(block_state(".."), found, "..", "..", "ab", "c.", ".d")
    expect(outcome, "ab|c.", "00|0-", "22|3-", "11|00", 3, 1)


def test_a_finished_copy_without_children_ends_the_walk():
    found = states(("..", 0, -1, 0), ("ab", 0, -1, 1), ("xy", 0, -1, 1), ("..", 1, 1, 0))
    outcome = walk(block_state(".."), found, "xy", "..", "..", "c.")
    assert window(outcome.tokens) == ["xy|.."]
    assert outcome.accepted[0].long().tolist() == [[1, 1], [0, 0]]
    assert int(outcome.finished) == 1


def test_three_blocks_are_walked_in_one_go():
    found = states(("a", 0, -1, 1), ("b", 1, 0, 1), (".", 0, -1, 0), (".", 1, 0, 0), (".", 2, 1, 0), root=2, in_place=2)
    outcome = walk(block_state("."), found, ".", ".", "a", "b", "z")
    expect(outcome, "a|b|z", "0|0|0", "2|3|4", "1|1|0", 4, 3)


def test_columns_that_only_fill_up_are_never_entered():
    guess = draft(("ab", "12"), (".b", "21"))
    found = build(block_state("..", ".."), guess, [codes("subsets", 2)])
    put = torch.where(found.tokens == MASK, torch.tensor(ids("ab")), MASK)
    first = torch.arange(2) == (put != MASK).long().argmax(-1, keepdim=True)
    outcome = replay(block_state("..", ".."), found, put, first & (put != MASK), 3, False)
    # sequence 1 never drafted "a.": its step to "a." is a correction, though column "a." exists for sequence 0
    assert window(outcome.tokens) == ["ab", "a."]
    assert outcome.accepted.long().tolist() == [[[1, 0]], [[0, 0]]]


def test_each_sequence_of_a_batch_walks_for_itself():
    state = block_state("..", "a.", ".b", taken=[0, 1, 1])
    guess = draft(("ab|cd", "12|34"), ("ab|c.", "01|23"), (".b|..", "10|11"))
    found = trim(build(state, guess, [codes("chain", 2)] * 2))
    target = [{"..": "a.", "a.": ".b", ".b": "x."}, {"..": "c.", "c.": ".d"}]
    put = torch.full_like(found.tokens, MASK)
    for row in range(3):
        for column in range(found.tokens.shape[1]):
            step = target[int(found.block[row, column])].get(letters(found.tokens[row, column]), "..")
            put[row, column] = torch.tensor(ids(step))
    outcome = replay(state, found, put, put != MASK, 5, True)
    assert window(outcome.tokens) == ["ab|cd", "ab|cd", "xb|.."]
    assert outcome.taken.tolist() == [[[0, 1], [0, 1]], [[-1, 1], [0, 1]], [[1, -1], [-1, -1]]]
    assert outcome.finished.tolist() == [2, 2, 1]


@pytest.mark.parametrize("tokens", ["ab|..", "..|..", "ab|cd", ".b|.."])
def test_finished_counts_leading_blocks_without_a_mask(tokens):
    given = torch.tensor([[ids(part) for part in tokens.split("|")]])
    outcome = Outcome(given, given, given, given == 0, given[:, 0, 0], MASK)
    assert outcome.finished.tolist() == [{"ab|..": 1, "..|..": 0, "ab|cd": 2, ".b|..": 0}[tokens]]
