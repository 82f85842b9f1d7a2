"""Layouts: which rows one forward pass computes, where they stand, and what they see (method section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from simsd.core.draft import BlockState, Draft
from simsd.core.states import States


@dataclass(frozen=True)
class Layout:
    """R tail rows of each of N sequences. Every row also sees the whole cached prefix.

    ids:       [N, R] token ids.
    positions: [N, R] RoPE positions.
    mask:      [N, R, R] bool, query row -> key row, True where visible.
    judge:     [N, J] the rows whose logits are read.
    skip:      [N] leading rows that only fill the batch up: nothing sees them, they see nothing.
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor
    judge: Tensor
    skip: Tensor


# The four rules of SimSD's temporal mask. q and k are the steps (tau) of the query and of the key position.
def _data_sees_data(q: Tensor, k: Tensor) -> Tensor:
    return k <= q


def _data_sees_slot(q: Tensor, k: Tensor) -> Tensor:
    return k > q


def _slot_sees_data(q: Tensor, k: Tensor) -> Tensor:
    return k < q


def _slot_sees_slot(q: Tensor, k: Tensor) -> Tensor:
    return k >= q


def paired(state: BlockState, draft: Draft, *, position_copy: bool = True) -> Layout:
    """SimSD's layout [D0 M0 | D1 M1 | ...]: the drafted block, and one mask slot per token at its partner's position.

    An approximation from two layers on: a slot sees later slots, which have seen the token that it judges
    (method section 4a). `position_copy=False` numbers the slots on after their block: the paper's ablation.
    Judge rows: [W * B], the slot of every position.
    """
    batch, blocks, size = draft.tokens.shape
    data = torch.stack((draft.tokens, torch.full_like(draft.tokens, draft.mask_id)), 2)  # [N, W, 2, B]
    place = state.positions(blocks)
    slot_place = place if position_copy else place + size
    step = draft.step[:, :, None].expand(-1, -1, 2, -1).flatten(1)  # [N, R]
    q, k = step[:, :, None], step[:, None, :]
    rows = torch.arange(blocks * 2 * size, device=step.device)
    block, slot = rows // (2 * size), rows // size % 2 == 1
    q_slot, k_slot, same = slot[:, None], slot[None, :], block[:, None] == block[None, :]
    within = (
        (~q_slot & ~k_slot & _data_sees_data(q, k))
        | (~q_slot & k_slot & _data_sees_slot(q, k))
        | (q_slot & ~k_slot & _slot_sees_data(q, k))
        | (q_slot & k_slot & _slot_sees_slot(q, k))
    )
    earlier = (block[:, None] > block[None, :]) & ~k_slot  # a later block sees an earlier block's data, never its slots
    judge = rows.view(blocks, 2, size)[:, 1].flatten().expand(batch, -1)
    return Layout(
        ids=data.flatten(1),
        positions=torch.stack((place, slot_place), 2).flatten(1),
        mask=(same & within) | earlier,
        judge=judge,
        skip=state.start.new_zeros(batch),
    )


def unrolled(state: BlockState, states: States) -> Layout:
    """The exact layout: every state is one copy of its block that sees the prefix, its ancestors and itself.

    Judge rows: [(S - in_place) * B], every position of every state but the finished ones in front.
    """
    batch, count, size = states.tokens.shape
    device = states.tokens.device
    sees = _sees(states)
    positions = (state.start[:, None] + states.block * size)[..., None] + torch.arange(size, device=device)
    mask = sees[:, :, None, :, None].expand(-1, -1, size, -1, size).reshape(batch, count * size, count * size)
    judge = torch.arange(states.in_place * size, count * size, device=device).expand(batch, -1)
    return Layout(states.tokens.flatten(1), positions.flatten(1), mask, judge, state.start.new_zeros(batch))


def _sees(states: States) -> Tensor:
    """[N, S, S], True where the first state sees the second: itself and its ancestors."""
    batch, count = states.parent.shape
    itself = torch.eye(count, dtype=torch.bool, device=states.parent.device)
    if count == 1:
        return itself.expand(batch, 1, 1)
    index = torch.arange(count, device=states.parent.device)
    up = (states.parent[:, :, None] == index) & states.valid[:, None, :]  # child -> parent
    sees, reach = up | itself, up
    for _ in range(states.blocks - 2):  # parents of parents, one block further back each time
        reach = (reach.float() @ up.float()) > 0
        sees = sees | reach
    return sees


def with_pending(layout: Layout, pending: Tensor, count: Tensor, start: Tensor) -> Layout:
    """Puts finished blocks whose K/V are not stored yet in front (method section 6).

    pending: [N, P, B] ids, of which the last `count` [N] blocks are real; start: [N] where the current block begins.
    They see each other block-causally; every row of the layout sees all of them.
    """
    batch, blocks, size = pending.shape
    if blocks == 0:
        return layout
    device = pending.device
    order = torch.arange(blocks, device=device)
    real = (order >= blocks - count[:, None])[..., None].expand(-1, -1, size).flatten(1)  # [N, P * B]
    block = order.repeat_interleave(size)
    front = blocks * size
    among = (block[:, None] >= block[None, :]) & real[:, None, :] & real[:, :, None]
    below = real[:, None, :].expand(-1, layout.ids.shape[1], -1)
    top = torch.cat((among, among.new_zeros(batch, front, layout.ids.shape[1])), 2)
    place = start[:, None] - front + torch.arange(front, device=device)
    return Layout(
        ids=torch.cat((pending.flatten(1), layout.ids), 1),
        positions=torch.cat((place.clamp(min=0), layout.positions), 1),
        mask=torch.cat((top, torch.cat((below, layout.mask), 2)), 1),
        judge=layout.judge + front,
        skip=layout.skip + (blocks - count) * size,
    )


def block_causal(ids: Tensor, first: Tensor, block_length: int) -> Layout:
    """Rows of known text from position `first` [N] on (a multiple of the block length), as prefill runs them."""
    batch, length = ids.shape
    place = torch.arange(length, device=ids.device)
    block = place // block_length
    mask = (block[:, None] >= block[None, :]).expand(batch, -1, -1)
    return Layout(ids, first[:, None] + place, mask, place[:0].expand(batch, -1), first.new_zeros(batch))
