"""What is counted and what a trace tells agree with the text and with each other (method section 7)."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from simsd.engine.options import SamplingParams
from simsd.engine.request import Sequence
from simsd.engine.trace import RoundTrace
from tests.drafting import make_drafter
from tests.tiny import MASK, Request, decode, engine, prompt_of, tiny_model

SIZE = 4
MODES: dict[str, tuple[str | None, dict[str, Any]]] = {
    "none": (None, {"method": "none"}),
    "exact": ("model, a look a step", {"method": "exact", "num_speculative_tokens": 9}),
    "exact, subsets": ("model", {"method": "exact", "states": "subsets"}),
    "exact, self": ("self", {"method": "exact"}),
    "exact, random guesses": ("random", {"method": "exact", "num_speculative_tokens": 11}),
    "simsd": ("model, a look a step", {"method": "simsd", "num_speculative_tokens": 7}),
    "draft order": ("model, a look a step", {"method": "exact-draft-order", "num_speculative_tokens": 8}),
}


@cache
def decoded(mode: str) -> tuple[Sequence, ...]:
    """A batch of three with prompts that end everywhere in a block; the last one is stopped by an id."""
    drafter, options = MODES[mode]
    made = make_drafter(drafter, SIZE) if drafter else None
    plain = Request(prompt_of(6), SamplingParams(max_tokens=19))
    warm = Request(prompt_of(9, 1), SamplingParams(max_tokens=14, temperature=1.0, seed=2))
    text = decode(engine(tiny_model(), SIZE), [Request(prompt_of(8, 2), SamplingParams(max_tokens=24))])[0].token_ids
    stopped = Request(prompt_of(8, 2), SamplingParams(max_tokens=24), frozenset({max(text, key=text.index)}))
    return tuple(decode(engine(tiny_model(), SIZE, made, trace=True, **options), [plain, warm, stopped]))


@pytest.mark.parametrize("mode", MODES)
def test_what_is_counted_agrees(mode):
    for sequence in decoded(mode):
        stats = sequence.stats
        assert stats.tokens == len(sequence.token_ids) == len(sequence.token_steps)
        assert stats.prompt_tokens == len(sequence.prompt_ids)
        assert stats.prefill_tokens == len(sequence.prompt_ids) // SIZE * SIZE
        assert stats.target_forwards == stats.rounds == len(sequence.trace)
        # whole blocks are decoded: everything behind the prompt was committed, and nothing twice
        assert stats.committed_tokens == len(sequence.text_ids) - len(sequence.prompt_ids)
        assert stats.committed_tokens >= stats.tokens
        assert stats.accepted_tokens <= min(stats.drafted_tokens, stats.committed_tokens)
        histogram = stats.acceptance_histogram
        assert sum(histogram) == stats.rounds
        assert sum(n * times for n, times in enumerate(histogram)) == stats.accepted_tokens
        assert sum(stats.window_histogram) == stats.rounds
        assert (stats.drafted_tokens > 0) == (sum(stats.window_histogram[1:]) > 0)
        assert stats.query_tokens >= SIZE * stats.rounds
        assert stats.tokens_per_forward == stats.tokens / stats.target_forwards
        assert stats.mean_acceptance_length == stats.committed_tokens / stats.target_forwards
        assert stats.query_tokens_per_forward == stats.query_tokens / stats.target_forwards
        parts = (stats.prefill_seconds, stats.draft_seconds, stats.verify_seconds, stats.accept_seconds)
        assert all(part >= 0 for part in parts) and stats.verify_seconds > 0
        assert sum(parts) <= stats.seconds
        assert stats.decode_tokens_per_second >= stats.tokens_per_second > 0
        assert json.loads(json.dumps(stats.to_dict()))["tokens"] == stats.tokens
        if mode == "none":
            assert stats.acceptance_rate is None
            assert stats.drafted_tokens == stats.draft_forwards == 0
        else:
            assert stats.acceptance_rate == stats.accepted_tokens / stats.drafted_tokens
        assert (stats.draft_forwards > 0) == ("model" in (MODES[mode][0] or ""))


@pytest.mark.parametrize("mode", MODES)
def test_a_verdict_is_what_before_drafted_and_after_say(mode):
    for sequence in decoded(mode):
        for one in sequence.trace:
            width = len(one.before)
            assert width % SIZE == 0 and one.block_start % SIZE == 0
            assert len(one.drafted) == len(one.after) == len(one.draft_step) == len(one.verdict) == width
            for before, drafted, after, step, verdict in zip(
                one.before, one.drafted, one.after, one.draft_step, one.verdict, strict=True
            ):
                assert (before != MASK) == (step == 0) == (verdict == "known")
                if verdict == "known":
                    assert before == after and drafted == MASK
                elif verdict == "accepted":
                    assert after == drafted != MASK
                elif verdict == "corrected":
                    assert after != MASK and drafted not in (MASK, after)
                elif verdict == "bonus":
                    assert after != MASK and drafted in (MASK, after)
                elif verdict == "rejected":
                    assert after == MASK != drafted
                else:
                    assert verdict == "masked" and after == drafted == MASK


@pytest.mark.parametrize("mode", MODES)
def test_the_rounds_of_a_trace_join_up_and_make_the_text(mode):
    for sequence in decoded(mode):
        text = sequence.prompt_ids[: len(sequence.prompt_ids) // SIZE * SIZE]
        state = [*sequence.prompt_ids[len(text) :], *[MASK] * (-len(sequence.prompt_ids) % SIZE)] or [MASK] * SIZE
        for index, one in enumerate(sequence.trace):
            assert one.index == index
            assert one.block_start == len(text)
            assert one.before[:SIZE] == state and set(one.before[SIZE:]) <= {MASK}
            blocks = [one.after[at : at + SIZE] for at in range(0, len(one.after), SIZE)]
            finished = next((n for n, block in enumerate(blocks) if MASK in block), len(blocks))
            assert one.finished_blocks == finished
            text += [token for block in blocks[:finished] for token in block]
            state = [*blocks, [MASK] * SIZE][finished]
            assert all(set(block) == {MASK} for block in blocks[finished + 1 :])
        assert text == sequence.text_ids
        verdicts = [verdict for one in sequence.trace for verdict in one.verdict]
        assert verdicts.count("accepted") == sequence.stats.accepted_tokens
        committed = sum(verdicts.count(name) for name in ("accepted", "corrected", "bonus"))
        assert committed == sequence.stats.committed_tokens


@pytest.mark.parametrize("mode", MODES)
def test_a_traced_layout_shows_the_rows_in_use_and_no_others(mode):
    for sequence in decoded(mode):
        stored = len(sequence.prompt_ids) // SIZE * SIZE
        for one in sequence.trace:
            layout = one.layout
            rows = len(layout.ids)
            assert rows == len(layout.positions) == len(layout.labels) == len(layout.mask)
            assert all(len(line) == rows for line in layout.mask)
            assert all(layout.mask[i][i] for i in range(rows))
            pending = layout.labels.count("pending")
            assert layout.labels[:pending] == ["pending"] * pending
            # prefix and pending blocks together are the text before the block
            assert layout.prefix_length + pending == one.block_start
            assert layout.prefix_length >= stored
            stored = layout.prefix_length
            assert layout.ids[:pending] == sequence.text_ids[stored : one.block_start]
            assert all(p >= one.block_start for p in layout.positions[pending:])
            _assert_groups(one, pending, "simsd" in mode)


def _assert_groups(one: RoundTrace, pending: int, paired: bool) -> None:
    """Behind the pending blocks stand whole groups of B rows: D and M in turn, or copies."""
    labels, size = one.layout.labels[pending:], one.block_length
    assert len(labels) % size == 0
    groups = labels[::size]
    assert labels == [label for label in groups for _ in range(size)]
    assert len(set(groups)) == len(groups)
    blocks = len(one.before) // size
    if paired:
        assert groups == [f"{kind}{w}" for w in range(blocks) for kind in "DM"]
    else:
        assert all(label[0] == "S" and int(label[1:].split(".")[0]) < blocks for label in groups)


def test_a_trace_is_ready_for_json():
    one = decoded("exact")[0].trace[0]
    assert json.loads(json.dumps(one.to_dict()))["verdict"] == one.verdict
