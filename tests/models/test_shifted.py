"""Shifted logits: whose row predicts which position, in every layout, whatever is pending, skipped or stored."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from simsd.core.draft import BlockState, Draft
from simsd.core.layout import Layout, block_causal, paired, unrolled, with_pending
from simsd.core.prefix import Known
from simsd.core.states import States, build, codes
from simsd.engine.runner import Runner
from simsd.models.huggingface import HuggingFaceModel
from simsd.models.shifted import Shifted, predecessors
from tests.modules import MASK, VOCAB, llama, qwen3, whole_logits

SIZE = 4


def draft_of(tokens: list[list[int]], steps: list[list[int]]) -> Draft:
    return Draft(torch.tensor([tokens]), torch.tensor([steps]), MASK)


def found(layout: Layout, stored: int) -> list[int]:
    """The slot of each row's predecessor; rows are written from slot `stored` on."""
    rows = layout.ids.shape[1]
    slots = torch.arange(stored, stored + rows)[None]
    seen = torch.cat((torch.ones(1, rows, stored, dtype=torch.bool), layout.mask), 2)
    bias = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)[:, None]
    return predecessors(layout.positions, bias, slots, stored + rows)[0].tolist()


def test_known_text_follows_itself():
    layout = block_causal(torch.arange(8)[None], torch.tensor([0]), SIZE)
    assert found(layout, 0) == [0, 0, 1, 2, 3, 4, 5, 6]
    later = block_causal(torch.arange(8)[None], torch.tensor([8]), SIZE)
    assert found(later, 8) == list(range(7, 15))


def test_a_copy_follows_itself_and_begins_where_the_text_ends():
    state = BlockState(torch.tensor([[MASK] * 4]), torch.tensor([8]), torch.tensor([0]), MASK)
    draft = draft_of([[5, 6, 7, 9], [3, MASK, MASK, MASK]], [[1, 2, 3, 4], [5, 6, 6, 6]])
    layout = unrolled(state, build(state, draft, [codes("chain", 4), codes("chain", 4)]))
    before = [slot - 8 for slot in found(layout, 8)]
    assert before[:4] == [-1, 0, 1, 2]  # the finished copy of the first block, in front
    blocks = [before[i : i + 4] for i in range(0, len(before), 4)]
    begins = [block[0] for block in blocks]
    assert [block[1:] for block in blocks] == [[i, i + 1, i + 2] for i in range(0, len(before), 4)]
    second = [int(p) == 12 for p in layout.positions[0, ::4]]
    assert begins == [3 if later else -1 for later in second]  # the second block follows the finished copy
    assert sum(second) > 1


def test_a_paired_slot_follows_what_it_sees_at_the_position_before():
    state = BlockState(torch.tensor([[2, MASK, MASK, MASK]]), torch.tensor([4]), torch.tensor([0]), MASK)
    draft = draft_of([[2, 5, 6, 7], [8, 9, 10, 11]], [[0, 3, 1, 2], [6, 4, 5, 7]])
    layout = paired(state, draft)
    slots = [slot - 4 for slot in found(layout, 4)]
    # [D0: 0..3, M0: 4..7, D1: 8..11, M1: 12..15]
    assert slots[4:8] == [-1, 0, 5, 2]  # M_2 comes before D_1 is known, M_1 and M_3 after D_0 and D_2
    assert slots[12:16] == [3, 12, 9, 10]


def test_pending_blocks_are_followed_and_fill_up_rows_never():
    state = BlockState(torch.full((2, 4), MASK), torch.tensor([8, 12]), torch.tensor([0, 0]), MASK)
    zero = torch.zeros(2, 1, dtype=torch.long)
    one = States(state.tokens[:, None], zero, zero - 1, zero, zero == 0, MASK)
    layout = with_pending(
        unrolled(state, one), torch.ones(2, 2, 4, dtype=torch.long), torch.tensor([1, 2]), state.start
    )
    slots = torch.tensor([[50] * 4 + [*range(4, 12)], [*range(4, 16)]])
    bias = torch.zeros(2, 1, 12, 16)
    before = predecessors(layout.positions, bias, slots, 16)
    assert before[0, 4:].tolist() == [3, 4, 5, 6, 7, 8, 9, 10]
    assert before[1].tolist() == list(range(3, 15))


def shifted_runner(module, blocks: int = SIZE) -> Runner:
    return Runner(Shifted(HuggingFaceModel(module), 32), MASK, blocks, 256)


@pytest.mark.parametrize("make", [qwen3, llama])
@pytest.mark.parametrize("pending", [0, 1, 2])
@torch.inference_mode()
def test_logits_of_copies_are_those_of_the_whole_text(make, pending: int):
    module = make()
    runner = shifted_runner(module)
    text = torch.randint(0, MASK, (16,), generator=torch.Generator().manual_seed(3)).tolist()
    stored = 16 - pending * SIZE
    runner.prefill(0, text[:stored])
    state = BlockState(torch.full((1, SIZE), MASK), torch.tensor([16]), torch.tensor([0]), MASK)
    draft = draft_of([[5, 6, 7, 9], [3, 4, MASK, MASK]], [[2, 1, 3, 3], [4, 5, 6, 6]])
    states = build(state, draft, [codes("subsets", 3), codes("chain", 2)])
    waiting = torch.tensor([text[stored:]], dtype=torch.long).view(1, pending, SIZE)
    layout = with_pending(unrolled(state, states), waiting, torch.tensor([pending]), state.start)
    logits = runner.logits(layout, Known([stored], [0]))[0].view(-1, SIZE, VOCAB)
    for at in range(states.in_place, states.tokens.shape[1]):
        if states.valid[0, at]:
            front = [5, 6, 7, 9] if states.block[0, at] == 1 else []
            whole = whole_logits(module, text + front + states.tokens[0, at].tolist(), SIZE, shifted=True)[-SIZE:]
            whole[:, MASK] = -torch.inf
            torch.testing.assert_close(logits[at - states.in_place], whole, rtol=1e-6, atol=1e-6)


def test_the_cache_grows_and_moves_hidden_states_with_keys_and_values():
    cache = shifted_runner(qwen3()).model.make_cache(2, 6)
    cache.hidden.copy_(torch.randn(cache.hidden.shape))
    kept: Tensor = cache.hidden.clone()
    cache.grow(9)
    cache.grow_sequences(4)
    assert (cache.sequences, cache.capacity, *cache.hidden.shape[:2]) == (4, 9, 4, 9)
    assert torch.equal(cache.hidden[:2, :6], kept)
    assert not cache.hidden[2:].any()
    cache.copy(1, 3, 4)
    assert torch.equal(cache.hidden[3, :4], kept[1, :4])
    assert not cache.hidden[3, 4:].any()
    cache.swap(0, 1, 5)
    assert torch.equal(cache.hidden[0, :6], torch.cat((kept[1, :5], kept[0, 5:])))
    assert torch.equal(cache.hidden[1, :6], torch.cat((kept[0, :5], kept[1, 5:])))
    cache.slice(3, 1).clear(0, 2)
    assert torch.equal(cache.hidden[3, :2], kept[1, :2])
    assert not cache.hidden[3, 2:].any()
