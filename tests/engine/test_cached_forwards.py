"""However a text reaches the cache, its rows are those of one forward over the whole text (method section 6)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from simsd.core.layout import block_causal, with_pending
from simsd.core.prefix import Bucket, Known
from simsd.engine import runner as runner_module
from simsd.engine.graphs import Graphs
from simsd.engine.runner import Runner
from tests.capture import StandIn
from tests.tiny import MASK, POSITIONS, assert_same, prompt_of, runner, tiny_model

SIZE = 4
TEXTS = [prompt_of(28, seed) for seed in range(3)]


def whole(text: list[int]) -> Tensor:
    """Logits of every row from one forward without any history."""
    fresh = runner(tiny_model(), SIZE)
    return rows(fresh, [text], [0])[0]


def rows(run: Runner, texts: list[list[int]], stored: list[int]) -> Tensor:
    """Logits of the same number of further rows of each text behind what is stored of it."""
    layout = block_causal(torch.tensor(texts), torch.tensor(stored), SIZE)
    layout = replace(layout, judge=torch.arange(len(texts[0])).expand(len(texts), -1))
    return run.logits(layout, Known(stored, [0] * len(texts)))


def test_a_block_at_a_time_is_the_whole_at_once():
    text, run = TEXTS[0], runner(tiny_model(), SIZE)
    pieces = [rows(run, [text[at : at + SIZE]], [at])[0] for at in range(0, len(text), SIZE)]
    assert_same(torch.cat(pieces), whole(text))


@pytest.mark.parametrize("piece", [4, 8, 12, 512])
def test_prefill_in_pieces_of_any_size(piece, monkeypatch):
    monkeypatch.setattr(runner_module, "PREFILL_ROWS", piece)
    text, run = TEXTS[1], runner(tiny_model(), SIZE)
    run.prefill(0, text[:24])
    assert_same(rows(run, [text[24:]], [24])[0], whole(text)[24:])


def test_scratch_is_overwritten_and_rolling_back_is_doing_nothing():
    text, run = TEXTS[0], runner(tiny_model(), SIZE)
    run.prefill(0, text[:12])
    for seed in (5, 6):  # two rounds that came to nothing, the first one longer
        rows(run, [prompt_of(12 - seed, seed)], [12])
    rows(run, [text[12:16]], [12])
    rows(run, [prompt_of(8, 7)], [16])
    assert_same(rows(run, [text[16:24]], [16])[0], whole(text)[16:24])
    # back into what was stored, and on along another way
    other = text[:8] + TEXTS[1][8:20]
    assert_same(rows(run, [other[8:]], [8])[0], whole(other)[8:])


@pytest.mark.parametrize("stored", [[0, 0, 0], [8, 8, 8], [4, 16, 0], [24, 0, 12]])
def test_a_batch_of_different_lengths_is_each_one_alone(stored):
    run = runner(tiny_model(), SIZE)
    for place, (text, have) in enumerate(zip(TEXTS, stored, strict=True)):
        run.reserve(place + 1, have)
        run.prefill(place, text[:have])
    part = [text[have : have + SIZE] for text, have in zip(TEXTS, stored, strict=True)]
    for found, text, have in zip(rows(run, part, stored), TEXTS, stored, strict=True):
        assert_same(found, whole(text)[have : have + SIZE])


def test_uneven_numbers_of_pending_blocks():
    run = runner(tiny_model(), SIZE)
    stored, start = [4, 12, 8], [12, 12, 12]  # two, none and one block behind
    for place, (text, have) in enumerate(zip(TEXTS, stored, strict=True)):
        run.prefill(place, text[:have])
    now = block_causal(torch.tensor([t[12:16] for t in TEXTS]), torch.tensor(start), SIZE)
    now = replace(now, judge=torch.arange(SIZE).expand(3, -1))
    fill = [[MASK] * (have - 4) + text[have:12] for text, have in zip(TEXTS, stored, strict=True)]
    pending = torch.tensor(fill).view(3, 2, SIZE)
    layout = with_pending(now, pending, torch.tensor([2, 0, 1]), torch.tensor(start))
    found = run.logits(layout, Known(stored, [0, 8, 4]))
    for one, text in zip(found, TEXTS, strict=True):
        assert_same(one, whole(text)[12:16])
    # and what was pending is stored now, at its place
    further = rows(run, [t[16:24] for t in TEXTS], [16] * 3)
    for one, text in zip(further, TEXTS, strict=True):
        assert_same(one, whole(text)[16:24])


def test_a_moved_sequence_goes_on_in_its_new_place_and_the_one_that_left_can_be_taken_up():
    run = runner(tiny_model(), SIZE)
    for place, text in enumerate(TEXTS):
        run.prefill(place, text[:16])
    run.leave(0, TEXTS[0][:16], 2, 16)
    found = rows(run, [TEXTS[2][16:20], TEXTS[1][16:20]], [16, 16])
    assert_same(found[0], whole(TEXTS[2])[16:20])
    assert_same(found[1], whole(TEXTS[1])[16:20])
    assert run.open(2, TEXTS[0]) == 16
    found = rows(run, [TEXTS[2][16:20], TEXTS[1][16:20], TEXTS[0][16:20]], [16, 16, 16])
    assert_same(found[2], whole(TEXTS[0])[16:20])


def holding(*lengths: int) -> Runner:
    """The first tokens of the texts, each at its place."""
    run = runner(tiny_model(), SIZE)
    for place, (text, length) in enumerate(zip(TEXTS, lengths, strict=False)):
        run.prefill(place, text[:length])
        run.hold(place, text[:length])
    return run


@pytest.mark.parametrize(
    ("slot", "text", "cached"),
    [
        (2, TEXTS[2][:12], 12),  # its own place had it
        (2, TEXTS[2][:11], 8),
        (2, TEXTS[2][:10] + TEXTS[1][10:20], 8),
        (2, TEXTS[0][:24], 16),  # a running sequence has it
        (1, TEXTS[2][:24], 16),  # a place behind has it
        (1, TEXTS[1][:4], 4),
        (2, TEXTS[1][4:20], 0),
        (2, [], 0),
        (3, TEXTS[1][:20], 16),  # a place that is new
    ],
)
def test_a_new_text_begins_with_what_a_place_holds_and_its_rows_are_right(slot, text, cached):
    run = holding(16, 16, 16)
    assert run.open(slot, text) == cached
    whole_blocks = text[: len(text) // SIZE * SIZE]
    run.prefill(slot, whole_blocks[cached:], cached)
    stored = [16] * slot + [len(whole_blocks)]
    block = TEXTS[0][24:28]
    found = rows(run, [text[16:20] for text in TEXTS[:slot]] + [block], stored)
    assert_same(found[slot], whole(whole_blocks + block)[-SIZE:])
    for place in range(slot):  # those that run are undisturbed
        assert_same(found[place], whole(TEXTS[place])[16:20])


def test_what_the_place_held_stays_where_the_source_was():
    run = holding(16, 16, 16)
    assert run.open(1, TEXTS[2][:16]) == 16
    assert run.open(2, TEXTS[1][:16]) == 16


@pytest.mark.parametrize("source", ["own", "behind"])
def test_nothing_that_is_no_number_stays_behind_what_is_taken_over(source):
    run = holding(16, 16, 16)
    run.cache.buffer[..., 16:, :] = torch.nan
    slot = 2 if source == "own" else 1
    assert run.open(slot, TEXTS[2][:20]) == 16
    run.prefill(slot, TEXTS[2][16:20], 16)
    run.clear(0)
    run.clear(1 if slot == 2 else 2)
    found = rows(run, [TEXTS[0][:4]] * slot + [TEXTS[2][20:24]], [0] * slot + [20])
    assert_same(found[slot], whole(TEXTS[2])[20:24])


def test_without_prefix_caching_nothing_is_taken_over():
    run = Runner(tiny_model().model, MASK, SIZE, POSITIONS, prefix_caching=False)
    run.prefill(0, TEXTS[0][:16])
    run.hold(0, TEXTS[0][:16])
    assert run.open(1, TEXTS[0][:16]) == 0
    assert run.open(0, TEXTS[0][:16]) == 0


def test_growing_keeps_what_is_stored():
    text, run = TEXTS[0], runner(tiny_model(), SIZE)
    run.reserve(1, 9)
    run.prefill(0, text[:8])
    run.reserve(5, 200)
    assert (run.cache.sequences, run.cache.capacity) == (5, 200)
    assert_same(rows(run, [text[8:16]], [8])[0], whole(text)[8:16])


def test_room_ahead_of_need_ends_with_the_longest_text():
    run = Runner(tiny_model().model, MASK, SIZE, POSITIONS, longest=40)
    capacities = []
    for slots in (20, 21, 31, 45):
        run.reserve(1, slots)
        capacities.append(run.cache.capacity)
    assert capacities == [20, 30, 40, 45]  # the last one has a tail behind the text


@pytest.mark.parametrize(("most", "places"), [(1, [1, 2, 3, 4, 5, 6, 7]), (6, [1, 2, 4, 4, 6, 6, 7])])
def test_places_double_as_far_as_there_may_be_sequences(most: int, places: list[int]):
    run = Runner(tiny_model().model, MASK, SIZE, POSITIONS, most_sequences=most)
    found = []
    for sequences in range(1, 8):
        run.reserve(sequences, 10)
        found.append(run.cache.sequences)
    assert found == places
    assert run.another().most_sequences == most


def test_mask_is_never_likely():
    assert rows(runner(tiny_model(), SIZE), TEXTS, [0, 0, 0])[..., MASK].eq(-torch.inf).all()


@pytest.mark.parametrize("stored", [[0, 0, 0], [8, 8, 8], [4, 16, 0], [24, 0, 12]])
def test_a_length_rounded_up_and_numbers_of_the_device_are_the_same_forward(stored):
    run = runner(tiny_model(), SIZE)
    for place, (text, have) in enumerate(zip(TEXTS, stored, strict=True)):
        run.prefill(place, text[:have])
        run.cache.buffer[:, :, place, :, have:] = 7.0  # scratch, which nobody may see
    part = torch.tensor([text[have : have + SIZE] for text, have in zip(TEXTS, stored, strict=True)])
    now = replace(block_causal(part, torch.tensor(stored), SIZE), judge=torch.arange(SIZE).expand(3, -1))
    expected = run.logits(now, Known(stored, [0] * 3))
    for reach in (max(stored), 24, 50):
        assert_same(run.logits(now, Bucket(torch.tensor(stored), reach)), expected)
    skipped = [SIZE, 0, SIZE]  # a block of one sequence is pending, the others have fill-up rows in its place
    pending = torch.full((3, 1, SIZE), 5)
    front = with_pending(now, pending, torch.tensor([0, 1, 0]), torch.tensor([have + SIZE for have in stored]))
    expected = run.logits(front, Known(stored, skipped))
    assert_same(run.logits(front, Bucket(torch.tensor(stored), 50)), expected)


def test_where_there_are_graphs_lengths_go_by_steps_and_never_beyond_the_longest_text():
    there = torch.tensor([3, 9])
    plain = runner(tiny_model(), SIZE).prefix([3, 9], [4, 0], there)
    assert plain == Known([3, 9], [4, 0])
    assert plain.and_on(4) == Known([7, 13], [4, 0])
    run = Runner(tiny_model().model, MASK, SIZE, POSITIONS, longest=40, graphs=Graphs(StandIn, step=16))
    found = [run.prefix([3, have], [0, 0], there, ahead=8) for have in (4, 8, 9, 30, 33, 40)]
    assert [one.reach for one in found if isinstance(one, Bucket)] == [16, 16, 32, 40, 41, 48]
    assert found[0].and_on(4).stored.tolist() == [7, 13]  # type: ignore[union-attr]
