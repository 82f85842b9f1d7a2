"""A draft model behind its own cache sees exactly the text, however its cache came about (method section 6)."""

from __future__ import annotations

from collections.abc import Sequence as Many

import pytest
import torch
from torch import Tensor

from simsd.core import sampling
from simsd.core.layout import Layout
from simsd.core.prefix import Prefix
from simsd.core.schedule import STRATEGIES, reveal
from simsd.drafters.base import order_noise
from simsd.drafters.model import FEW, ModelDrafter
from simsd.engine.runner import Runner
from tests.core.cases import MASK, VOCAB, ids, make_sampler, make_schedule
from tests.drafters.support import View, ask
from tests.hash_model import HashModel

SIZE = 4
MODEL = HashModel(VOCAB, layers=3, seed=5)


def drafter(draft_steps: int = SIZE) -> ModelDrafter:
    return ModelDrafter(Runner(MODEL, MASK, SIZE, 10_000), SIZE, draft_steps)


def text_of(length: int, seed: int = 0) -> list[int]:
    return torch.randint(0, VOCAB - 1, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def decode(text: list[int], block: list[int], blocks: int, name: str, temperature: float, taken: int):
    """Ordinary decoding by the draft model, one full forward a step and no cache: (tokens, steps) of each block."""
    rule, sampler = make_schedule(name, SIZE), make_sampler(temperature, seed=11)
    text, done = list(text), []
    for w in range(blocks):
        tokens = torch.tensor([block if w == 0 else [MASK] * SIZE])
        steps, count = [0] * SIZE, 0
        place = len(text) + torch.arange(SIZE)[None]
        while bool((tokens == MASK).any()):
            logits = MODEL.plain_logits(text + tokens[0].tolist(), SIZE, MASK)[None, -SIZE:]
            time = torch.tensor([count + (taken if w == 0 else 0)])
            key = sampling.noise_key(sampler.seed[:, None], sampling.TARGET, place, time[:, None])
            drawn = sampling.draw(logits, sampler, key, entropy=True)
            noise = order_noise(sampler, rule, place, time)
            shown = reveal(rule, tokens == MASK, time, drawn.doubt, drawn.entropy, noise)
            tokens = torch.where(shown, drawn.token, tokens)
            count += 1
            steps = [count if s else old for s, old in zip(shown[0].tolist(), steps, strict=True)]
        done.append((tokens[0].tolist(), steps))
        text += tokens[0].tolist()
    return done


def same(made, row: int, expected) -> None:
    assert made.tokens[row].tolist() == [tokens for tokens, _ in expected]
    assert made.local_step()[row].tolist() == [steps for _, steps in expected]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_look_for_every_step_is_the_draft_models_own_decoding(name, temperature):
    source, one = drafter(), View(text_of(8))
    source.admit(one, 0)
    block = ids(".b..")
    rule, sampler = make_schedule(name, SIZE), make_sampler(temperature, seed=11)
    made = source.propose(ask(".b..", sequences=[one], window=3, schedule=rule, sampler=sampler, taken=1))
    same(made, 0, decode(one.text_ids, block, 3, name, temperature, 1))
    assert source.forwards == 3 * SIZE


def test_a_prompt_shorter_than_a_block_is_drafted_from_nothing():
    source, one = drafter(), View([])
    source.admit(one, 0)
    same(source.propose(ask("ab..", sequences=[one], window=2)), 0, decode([], ids("ab.."), 2, STRATEGIES[0], 0.0, 0))


def test_the_cache_catches_up_with_text_that_others_wrote():
    """Rounds that finish none, one or several blocks, with scratch of wrong guesses left in the cache."""
    source, one = drafter(), View(text_of(8))
    source.admit(one, 0)
    for seed, (grown, block) in enumerate([(0, "...."), (4, ".x.."), (0, ".xy."), (12, "...."), (8, "z...")]):
        one.text_ids += text_of(grown, seed + 20)
        made = source.propose(ask(block, sequences=[one], window=2))
        same(made, 0, decode(one.text_ids, ids(block), 2, STRATEGIES[0], 0.0, 0))


class Watched(Runner):
    """Keeps the place and the length of every piece of text that is stored beside drafts."""

    def __init__(self) -> None:
        super().__init__(MODEL, MASK, SIZE, 10_000)
        self.read: list[tuple[int, int]] = []
        self.most = 0

    def prefill(self, slot: int, ids: Many[int], stored: int = 0) -> None:
        self.read.append((slot, len(ids)))
        super().prefill(slot, ids, stored)

    def hidden(self, layout: Layout, prefix: Prefix, first: int = 0) -> Tensor:
        self.most = max(self.most, layout.ids.shape[1])
        return super().hidden(layout, prefix, first)


@pytest.mark.parametrize("soon", [True, False])
def test_a_prompt_may_wait_until_a_draft_is_asked_for(soon):
    """Unless it is so long that a round would have to wait for it; the drafts are the same."""
    runner = Watched()
    source = ModelDrafter(runner, SIZE, SIZE)
    every = [View(text_of(length, length)) for length in (0, 80, runner.piece + SIZE)]
    for slot, one in enumerate(every):
        source.admit(one, slot, soon)
    assert [length for _, length in runner.read] == ([0, 80, runner.piece + SIZE] if soon else [runner.piece + SIZE])
    assert source.catch_up(every, 2) is not soon
    assert not source.catch_up(every, 2)
    blocks = ("ab..", "....", ".c..")
    made = source.propose(ask(*blocks, sequences=every, window=2))
    for row, (one, block) in enumerate(zip(every, blocks, strict=True)):
        same(made, row, decode(one.text_ids, ids(block), 2, STRATEGIES[0], 0.0, 0))


def test_what_was_written_meanwhile_is_read_in_pieces_of_bounded_size():
    runner = Watched()
    source, every = ModelDrafter(runner, SIZE, SIZE), [View(text_of(8)), View(text_of(12, 1))]
    for slot, one in enumerate(every):
        source.admit(one, slot)
    runner.read.clear()
    every[0].text_ids += text_of(FEW * SIZE, 2)
    assert not source.catch_up(every, 1)
    every[1].text_ids += text_of(2 * runner.piece, 3)
    assert source.catch_up(every, 1)
    assert runner.read == [(1, 2 * runner.piece)]
    made = source.propose(ask("a...", "....", sequences=every))
    assert runner.most == runner.piece
    for row, (one, block) in enumerate(zip(every, ("a...", "...."), strict=True)):
        same(made, row, decode(one.text_ids, ids(block), 1, STRATEGIES[0], 0.0, 0))


def test_a_window_of_many_blocks_may_be_further_behind():
    """A round keeps at most what it drafted: that goes along with the next draft."""
    runner = Watched()
    source, one = ModelDrafter(runner, SIZE, 1), View(text_of(8))
    source.admit(one, 0)
    one.text_ids += text_of(2 * FEW * SIZE, 2)
    assert not source.catch_up([one], 2 * FEW)
    assert source.catch_up([one], 2 * FEW - 1)


def test_sequences_side_by_side_draft_what_each_drafts_alone():
    source = drafter()
    every = [View(text_of(length, length)) for length in (12, 0, 4)]
    for slot, one in enumerate(every):
        source.admit(one, slot)
    for seed, (grown, blocks) in enumerate(
        [
            ((0, 0, 0), ("....", "ab..", ".c..")),
            ((4, 0, 8), ("....", "abc.", "d...")),
            ((8, 4, 0), (".e..", "....", "d.f.")),
        ]
    ):
        for one, more in zip(every, grown, strict=True):
            one.text_ids += text_of(more, seed * 7 + more)
        made = source.propose(ask(*blocks, sequences=every, window=2))
        for row, (one, block) in enumerate(zip(every, blocks, strict=True)):
            same(made, row, decode(one.text_ids, ids(block), 2, STRATEGIES[0], 0.0, 0))


def test_a_sequence_that_moves_takes_its_cache_along():
    source = drafter()
    every = [View(text_of(length, length)) for length in (4, 8, 12)]
    for slot, one in enumerate(every):
        source.admit(one, slot)
    source.propose(ask("....", "....", "....", sequences=every, window=2))
    source.leave(every[0], 0, every[2], 2)
    left = [every[2], every[1]]
    left[0].text_ids += text_of(4, 99)
    made = source.propose(ask("..a.", "b...", sequences=left, window=2))
    for row, block in enumerate(("..a.", "b...")):
        same(made, row, decode(left[row].text_ids, ids(block), 2, STRATEGIES[0], 0.0, 0))


@pytest.mark.parametrize(("looks", "forwards"), [(1, 2), (2, 4), (4, 8)])
def test_looks_are_counted_as_forwards_of_the_draft_model(looks, forwards):
    source, one = drafter(looks), View(text_of(4))
    source.admit(one, 0)
    made = source.propose(ask("....", sequences=[one], window=2))
    assert source.forwards == forwards
    assert bool(made.complete.all())


def test_the_first_step_of_a_single_look_is_the_draft_models_own():
    source, one = drafter(1), View(text_of(8))
    source.admit(one, 0)
    made = source.propose(ask("....", sequences=[one]))
    tokens, steps = decode(one.text_ids, ids("...."), 1, STRATEGIES[0], 0.0, 0)[0]
    first = made.step[0, 0].tolist().index(1)
    assert first == steps.index(1) and int(made.tokens[0, 0, first]) == tokens[first]
