"""What the two layouts compute on a real transformer (method section 4): one is exact, one is so for one layer only."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from simsd.core.draft import BlockState, Draft
from simsd.core.layout import Layout, block_causal, paired, unrolled
from simsd.core.prefix import Known
from simsd.core.states import KINDS, build, codes, trim
from tests.tiny import MASK, assert_same, prompt_of, runner, tiny_model

SIZE, PREFIX = 4, 8
TEXT = prompt_of(PREFIX, 3)

# Known tokens (step 0) with holes between them, a step of two tokens, and places that are not drafted.
DRAFTS = {
    "one block": ([[5, 9, 17, 33]], [[2, 1, 4, 3]]),
    "a known token and a shared step": ([[5, 9, 17, 33]], [[1, 0, 2, 1]]),
    "not drafted to its end": ([[5, MASK, 17, MASK]], [[1, 3, 2, 3]]),
    "two blocks": ([[5, 9, 17, 33], [2, 40, 41, MASK]], [[2, 0, 1, 3], [4, 6, 5, 7]]),
}


def given(name: str) -> tuple[BlockState, Draft]:
    tokens, step = (torch.tensor([value]) for value in DRAFTS[name])
    state = BlockState(torch.where(step == 0, tokens, MASK)[:, 0], torch.tensor([PREFIX]), torch.tensor([0]), MASK)
    return state, Draft(tokens, step, MASK)


def judged(layout: Layout, layers: int) -> Tensor:
    """Logits [J, V] of the layout's judged rows behind the prefix."""
    run = runner(tiny_model(layers), SIZE)
    run.prefill(0, TEXT)
    return run.logits(layout, Known([PREFIX], [0]))[0]


def ordinary(before: list[list[int]], state: list[int], layers: int) -> Tensor:
    """Logits [B, V] of a block's state as ordinary decoding computes them: a forward over all of the text."""
    text = TEXT + [token for block in before for token in block] + state
    layout = block_causal(torch.tensor([text]), torch.tensor([0]), SIZE)
    layout = replace(layout, judge=torch.arange(len(text) - SIZE, len(text))[None])
    return runner(tiny_model(layers), SIZE).logits(layout, Known([0], [0]))[0]


def of_each_step(draft: Draft, layers: int) -> Tensor:
    """[W * B, V]: at each place the logits of ordinary decoding in the state in which the place's step is taken."""
    blocks, steps = draft.tokens[0].tolist(), draft.step[0].tolist()
    rows = []
    for w, (tokens, step) in enumerate(zip(blocks, steps, strict=True)):
        for place in range(SIZE):
            state = [t if s < step[place] else MASK for t, s in zip(tokens, step, strict=True)]
            rows.append(ordinary(blocks[:w], state, layers)[place])
    return torch.stack(rows)


def difference(name: str, layers: int, *, position_copy: bool = True) -> float:
    """The largest difference between the slots' logits and ordinary decoding's, known places left out."""
    state, draft = given(name)
    found = judged(paired(state, draft, position_copy=position_copy), layers)
    apart = (found - of_each_step(draft, layers)).nan_to_num(0.0).abs().amax(-1)
    return float(apart[draft.step[0].flatten() > 0].max())


@pytest.mark.parametrize("name", DRAFTS)
def test_with_one_layer_a_slot_has_the_logits_of_its_step(name):
    assert difference(name, 1) < 1e-9


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("layers", [2, 4])
def test_from_two_layers_on_a_slot_has_not(name, layers):
    assert difference(name, layers) > 1e-2


@pytest.mark.parametrize("name", DRAFTS)
def test_without_position_copy_not_even_with_one_layer(name):
    assert difference(name, 1, position_copy=False) > 1e-2


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_the_token_under_judgement_leaks_into_its_verdict_from_two_layers_on(layers):
    state, draft = given("one block")
    first = int((draft.step[0, 0] == 1).nonzero())
    other = draft.tokens.clone()
    other[0, 0, first] = 50
    before = judged(paired(state, draft), layers)[first].nan_to_num(0.0)
    after = judged(paired(state, replace(draft, tokens=other)), layers)[first].nan_to_num(0.0)
    # its own verdict is the first, taken in a state in which nothing is revealed yet
    assert torch.allclose(before, after, rtol=0, atol=1e-9) == (layers == 1)
    assert layers == 1 or float((before - after).abs().max()) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_every_unrolled_row_has_the_logits_of_its_state(name, layers, kind):
    state, draft = given(name)
    states = trim(build(state, draft, [codes(kind, SIZE)] * draft.tokens.shape[1]))
    found = judged(unrolled(state, states), layers).view(-1, SIZE, tiny_model().config.vocab_size)
    blocks = draft.tokens[0].tolist()
    for at in range(states.in_place, states.tokens.shape[1]):
        expected = ordinary(blocks[: int(states.block[0, at])], states.tokens[0, at].tolist(), layers)
        assert_same(found[at - states.in_place], expected)


def test_a_finished_copy_leaves_the_keys_and_values_of_the_store_pass():
    state, _ = given("one block")
    tokens = torch.tensor([[[5, 9, 17, 33], [2, MASK, MASK, MASK]]])
    draft = Draft(tokens, torch.tensor([[[2, 1, 4, 3], [5, 6, 6, 6]]]), MASK)
    run = runner(tiny_model(3), SIZE)
    run.prefill(0, TEXT)
    states = trim(build(state, draft, [codes("chain", SIZE)] * 2))
    assert states.in_place == 1
    run.logits(unrolled(state, states), Known([PREFIX], [0]))
    stored = runner(tiny_model(3), SIZE)
    stored.prefill(0, TEXT + tokens[0, 0].tolist())
    length = PREFIX + SIZE
    assert_same(run.cache.buffer[..., :length, :], stored.cache.buffer[..., :length, :])
