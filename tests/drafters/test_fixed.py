"""Drafts that are tokens: fixed guesses, recorded trajectories and the text itself (method section 3)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simsd.drafters.fixed import fixed_draft
from simsd.drafters.lookup import LookupDrafter, last_occurrence
from simsd.drafters.trajectory import Trajectory, TrajectoryDrafter
from simsd.errors import ConfigError
from tests.core.cases import MASK, digits, ids, letters, window
from tests.drafters.support import ask, view


def fix(block: str, tokens: str, steps: list[int], blocks: int = 1) -> tuple[str, list[list[int]]]:
    made = fixed_draft(ask(block, sequences=[view("")], window=blocks), [(ids(tokens), steps)])
    assert made.proposal is None
    return window(made.tokens)[0], made.step[0].tolist()


def steps(text: str) -> list[list[int]]:
    return digits(text, 0).tolist()


def test_steps_are_made_dense_and_equal_ones_stay_one():
    assert fix("....", "abcd", [7, 2, 7, 30]) == ("abcd", steps("2123"))


def test_steps_begin_again_in_each_block_and_count_on_in_the_draft():
    assert fix("..", "abcdef", [1, 0, 1, 0, 0, 0], 3) == ("ab|cd|ef", steps("21|43|55"))


def test_known_tokens_stay_and_their_steps_do_not_count():
    assert fix("a..d", "wxyz", [0, 9, 3, 5]) == ("axyd", steps("0210"))


def test_a_short_guess_leaves_the_rest_masked():
    assert fix("...", "a", [0]) == ("a..", steps("122"))


def test_no_guess_is_the_empty_draft():
    assert fix("a..", "", [], 2) == ("a..|...", steps("011|111"))


def test_a_long_guess_is_cut_at_the_window():
    assert fix("..", "abcdefgh", list(range(8)), 2) == ("ab|cd", steps("12|34"))


def test_a_gap_in_the_guess_stays_masked_and_ends_the_draft_at_its_block():
    assert fix("..", "a.cd", [0, 1, 2, 3], 2) == ("a.|..", steps("12|22"))


def test_a_gap_that_the_state_fills_does_not_end_the_draft():
    assert fix(".b", "a.cd", [0, 1, 2, 3], 2) == ("ab|cd", steps("10|23"))


def test_sequences_of_a_batch_have_guesses_of_their_own():
    request = ask("..", "a.", "..", sequences=[view("")] * 3, window=2)
    made = fixed_draft(request, [(ids("abcd"), [0, 0, 0, 1]), (ids("xy"), [0, 1]), ((), ())])
    assert window(made.tokens) == ["ab|cd", "ay|..", "..|.."]
    assert made.step.tolist() == [steps("11|23"), steps("01|22"), steps("11|11")]


guesses = st.lists(st.tuples(st.one_of(st.just(MASK), st.integers(0, 3)), st.integers(0, 4)), max_size=10)


@given(guesses, st.lists(st.booleans(), min_size=3, max_size=3), st.integers(1, 3))
def test_every_fixed_draft_keeps_the_rules_of_a_draft(guess, known, blocks):
    block = [5 if k else MASK for k in known]
    request = ask(letters(block), sequences=[view("")], window=blocks)
    made = fixed_draft(request, [([t for t, _ in guess], [s for _, s in guess])])
    assert made.tokens[0, 0][torch.tensor(known)].eq(5).all()
    assert torch.equal(made.step[:, 0] == 0, torch.tensor([known]))
    assert (made.step[:, 1:] > 0).all()
    last, still_open = 0, True
    for w in range(blocks):
        drafted = made.drafted[0, w]
        if not still_open:
            assert not drafted.any()
        found = sorted(set(made.step[0, w][drafted].tolist()))
        assert found == list(range(last + 1, last + 1 + len(found)))
        last += len(found)
        still_open = still_open and bool(made.complete[0, w])
    assert (made.step[made.tokens == MASK] == last + 1).all()
    places = [i for i in range(min(3, len(guess))) if made.drafted[0, 0, i]]
    for i in places:
        for j in places:
            assert bool(made.step[0, 0, i] < made.step[0, 0, j]) == (guess[i][1] < guess[j][1])


def follow(text: str, block: str, longest: int = 3, blocks: int = 1) -> str:
    drafter = LookupDrafter(longest)
    made = drafter.propose(ask(block, sequences=[view(text)], window=blocks))
    return window(made.tokens)[0]


def test_lookup_drafts_what_followed_the_last_tokens_before():
    assert follow("abcdxxabc", "...") == "dxx"


def test_lookup_prefers_the_longest_and_then_the_latest_occurrence():
    assert follow("abcwxbcqabc", "..") == "wx"
    assert follow("abqabrab", "..") == "ra"


def test_lookup_falls_back_to_shorter_n_grams():
    assert follow("abqrb", "..") == "qr"
    assert follow("abqrb", "..", longest=1) == "qr"


def test_lookup_drafts_nothing_where_nothing_recurs():
    assert follow("abcd", "....") == "...."
    assert follow("a", ".") == "."
    assert follow("", "..") == ".."


def test_lookup_repeats_itself_past_the_end_of_the_text():
    assert follow("abab", "......") == "ababab"
    assert follow("aaa", "....", blocks=2) == "aaaa|aaaa"
    assert follow("xyzxyz", "....") == "xyzx"


def test_lookup_goes_on_from_the_known_tokens_in_front_of_the_first_gap():
    assert follow("abcdef", "ab...") == "abcde"
    assert follow("", "aba.") == "abab"


def test_lookup_keeps_its_place_across_holes():
    # after "ab" came "cdef"; the known token in the hole stays, whatever the text says there
    assert follow("abcdef", "ab.z.") == "abcze"


def test_lookup_drafts_from_left_to_right():
    made = LookupDrafter().propose(ask("a.c.", sequences=[view("abxyabxy")], window=2))
    assert made.step[0].tolist() == steps("0102|3456")


def test_lookup_answers_for_each_sequence_of_a_batch():
    made = LookupDrafter().propose(ask("..", "..", sequences=[view("abab"), view("abcd")]))
    assert window(made.tokens) == ["ab", ".."]


def naive_occurrence(text: list[int], longest: int) -> int | None:
    for n in range(min(longest, len(text) - 1), 0, -1):
        for at in range(len(text) - 1 - n, -1, -1):
            if text[at : at + n] == text[-n:]:
                return at + n
    return None


@given(st.lists(st.integers(0, 2), max_size=14), st.integers(1, 4))
def test_last_occurrence_equals_a_plain_search(text, longest):
    assert last_occurrence(torch.tensor(text), longest) == naive_occurrence(text, longest)


def replayed(trajectory: Trajectory | None, text: str, prompt: int, block: str, blocks: int = 1):
    memory = {} if trajectory is None else {"trajectory": trajectory}
    made = TrajectoryDrafter().propose(ask(block, sequences=[view(text, prompt, **memory)], window=blocks))
    return window(made.tokens)[0], made.step[0].tolist()


RECORDED = Trajectory(ids("abcdefgh"), [0, 1, 2, 3, 1, 0, 0, 1])


def test_a_trajectory_is_drafted_from_where_the_text_stands():
    assert replayed(RECORDED, "xxxx", 4, "....", 2) == ("abcd|efgh", steps("1234|6556"))
    assert replayed(RECORDED, "xxxxabcd", 4, "....", 2) == ("efgh|....", steps("2112|3333"))


def test_a_trajectory_after_a_prompt_that_ends_inside_the_block_begins_behind_its_tail():
    recorded = Trajectory(ids("abcdef"), [1, 0, 0, 1, 2, 3])
    assert replayed(recorded, "xxxx", 6, "xy..", 2) == ("xyab|cdef", steps("0021|3456"))


def test_steps_of_a_trajectory_count_by_block_of_the_grid():
    recorded = Trajectory(ids("abcdef"), [0, 1, 0, 1, 2, 3])
    text, tau = replayed(recorded, "xxxx", 6, "xy..", 2)
    assert text == "xyab|cdef" and tau == steps("0012|3456")


def test_beyond_the_end_of_a_trajectory_nothing_is_drafted():
    assert replayed(RECORDED, "xxxx" + "abcdefgh", 4, "....") == ("....", steps("1111"))
    assert replayed(RECORDED, "xxxx" + "abcdefgh" + "ijkl", 4, "....") == ("....", steps("1111"))


def test_without_a_trajectory_nothing_is_drafted():
    assert replayed(None, "xxxx", 4, "....") == ("....", steps("1111"))


def test_a_trajectory_of_unequal_lengths_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match="2 tokens but 1 steps"):
        Trajectory([1, 2], [0])
