"""Sets of states: the copies of the block that one pass judges side by side (method section 4b).

A state is named by a *code*: which of the draft's steps have happened. The chain has the prefixes only; swaps add
the states in which two neighbouring steps came in the other order; subsets are all of them, nearest first; likely
are those of the subsets that the draft's own confidences make likely (`likelihood.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from simsd.core.draft import BlockState, Draft
from simsd.core.tensors import on_device

KINDS = ("chain", "swaps", "subsets", "likely")


@dataclass(frozen=True)
class States:
    """S states of each of N sequences. Any set is allowed; the builders below make the useful ones.

    tokens: [N, S, B] ids, MASK where unknown.
    block:  [N, S] which block of the window the state belongs to.
    parent: [N, S] index of the finished state of the previous block that it sees; -1 in block 0.
    taken:  [N, S] denoising steps taken in the block when this state is reached.
    valid:  [N, S] False for columns that only fill the batch up.
    root:   index of the current state, where the walk begins.
    blocks: number of blocks W in the window.
    in_place: the first `in_place` columns are the finished states of blocks 0, 1, ...: in a layout their keys and
              values land where the committed ones belong.
    """

    tokens: Tensor
    block: Tensor
    parent: Tensor
    taken: Tensor
    valid: Tensor
    mask_id: int
    blocks: int = 1
    root: int = 0
    in_place: int = 0

    def __post_init__(self) -> None:
        shape = self.tokens.shape[:2]
        for name in ("block", "parent", "taken", "valid"):
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} is {tuple(getattr(self, name).shape)}, expected {tuple(shape)}")

    @property
    def finished(self) -> Tensor:
        """[N, S], True where no MASK is left."""
        return (self.tokens != self.mask_id).all(-1)


def _partitions(total: int, parts: int, largest: int) -> Iterator[tuple[int, ...]]:
    """Non-increasing ways to write `total` as at most `parts` numbers from 1 to `largest`."""
    if total == 0:
        yield ()
    elif parts > 0:
        for first in range(min(total, largest), 0, -1):
            for rest in _partitions(total - first, parts - 1, first):
                yield (first, *rest)


def _nearest_subsets(steps: int, limit: int) -> list[set[int]]:
    """Subsets of `steps` steps by rising number of adjacent swaps that lead there from the draft's own order."""
    found: list[set[int]] = []
    for swaps in range(steps * steps // 4 + 1):
        for size in range(steps + 1):
            # each of the last members of the prefix {0..size-1} moves back by one part of a partition
            for shift in _partitions(swaps, size, steps - size):
                moved = {size - 1 - i + by for i, by in enumerate(shift)}
                found.append(set(range(size - len(shift))) | moved)
        if len(found) >= limit:
            break
    return found[: max(limit, steps + 1)]


@cache
def codes(kind: str, steps: int, limit: int = 32) -> Tensor:
    """bool [C, steps]: the codes of a set over `steps` draft steps, the empty one first.

    `subsets` are all 2**steps of them, or where these are more than `limit`, the ones nearest to the draft's own
    order, counted in adjacent swaps.
    """
    if kind == "chain":
        return torch.ones(steps + 1, steps).tril(-1).bool()
    if kind == "swaps":
        chosen = [set(range(size)) for size in range(steps + 1)]
        chosen += [set(range(size)) | {size + 1} for size in range(steps - 1)]
    elif kind in ("subsets", "likely"):
        chosen = _nearest_subsets(steps, limit)
    else:
        raise ValueError(f"unknown set of states {kind!r}; choose one of {', '.join(KINDS)}")
    return torch.tensor([[step in members for step in range(steps)] for members in chosen]).view(len(chosen), steps)


def build(state: BlockState, draft: Draft, tables: Sequence[Tensor]) -> States:
    """The states that `tables[w]` (codes [C_w, U_w], U_w >= the draft's steps in block w) name in each block w.

    A block's finished state stands in the set only where the next block is drafted into, once, in front. In the last
    block it would cost B query tokens to save the B that store it in the next round.
    """
    batch, _, size = draft.tokens.shape
    local, drafted = draft.local_step(), draft.drafted
    steps = (local * drafted).amax(-1)  # [N, W] drafted steps in each block
    complete = draft.complete.long().cumprod(-1).bool()
    entered = torch.cat((torch.ones_like(complete[:, :1]), complete[:, :-1] & (steps[:, 1:] > 0)), 1)

    columns: list[tuple[Tensor, int, Tensor, Tensor]] = []
    for w in range(len(tables) - 1):  # the finished states that a later block sees
        columns.append((draft.tokens[:, w, None], w, steps[:, w, None], entered[:, w + 1, None]))
    for w, table in enumerate(tables):
        table = on_device(table, draft.tokens.device)
        count, units = table.shape
        padded = torch.cat((table, table.new_zeros(count, 1)), 1)  # the last column: not drafted
        unit = torch.where(drafted[:, w], local[:, w] - 1, units).clamp(max=units)
        shown = padded.T[unit].transpose(1, 2) | (local[:, w] == 0)[:, None]  # [N, C, B]
        tokens = torch.where(shown, draft.tokens[:, w, None], draft.mask_id)
        beyond = torch.arange(units, device=table.device) >= steps[:, w, None, None]
        valid = entered[:, w, None] & ~(table & beyond).any(-1) & (tokens == draft.mask_id).any(-1)
        columns.append((tokens, w, table.sum(-1).expand(batch, count), valid))

    ids, valid = torch.cat([c[0] for c in columns], 1), torch.cat([c[3] for c in columns], 1)
    block = torch.cat([torch.full_like(c[3], c[1], dtype=torch.long) for c in columns], 1)
    taken = torch.cat([c[2].expand(c[3].shape) for c in columns], 1)
    taken = taken + torch.where(block == 0, state.taken[:, None], 0)
    front = len(tables) - 1
    return States(ids, block, block - 1, taken, valid, draft.mask_id, len(tables), root=front, in_place=front)


def alone(state: BlockState) -> States:
    """The current state and no other: what ordinary decoding looks at."""
    batch = len(state.tokens)
    zero = state.taken.new_zeros(batch, 1)
    valid = state.masked.any(-1, keepdim=True)
    return States(state.tokens[:, None], zero, zero - 1, state.taken[:, None], valid, state.mask_id)


def reach(state: BlockState, draft: Draft, states: States) -> Tensor:
    """[N] how many of the draft's steps a walk takes that agrees with all of them, before it leaves the set."""
    before = draft.before.gather(1, states.block)
    steps = before + states.taken - torch.where(states.block == 0, state.taken[:, None], 0)  # [N, S] so far
    of_block = states.block[..., None].expand_as(states.tokens)
    known = draft.step.gather(1, of_block) <= steps[..., None]
    foreseen = torch.where(known, draft.tokens.gather(1, of_block), draft.mask_id)
    own = states.valid & (states.tokens == foreseen).all(-1) & ~states.finished
    most = draft.step[0].numel()
    there = own.new_zeros(own.shape[0], most + 1, dtype=torch.long).scatter_add_(1, steps.clamp(max=most), own.long())
    return (there > 0).long().cumprod(1).sum(1)


def select(states: States, index: Tensor) -> States:
    """Of each sequence the states at `index` [N, K], the first of them the root, and those in place that they see."""
    front = torch.arange(states.in_place, device=index.device).expand(index.shape[0], -1)
    columns = torch.cat((front, index), 1)
    chosen = replace(
        states,
        tokens=states.tokens.gather(1, columns[..., None].expand(-1, -1, states.tokens.shape[2])),
        block=states.block.gather(1, columns),
        parent=states.parent.gather(1, columns),
        taken=states.taken.gather(1, columns),
        valid=states.valid.gather(1, columns),
        root=states.in_place,
    )
    return without_idle(chosen)


def without_idle(states: States) -> States:
    """Marks as unused the finished states in place that no valid state of a later block sees."""
    valid = states.valid.clone()
    for w in reversed(range(states.in_place)):
        valid[:, w] &= (valid & (states.block > w)).any(1)
    return replace(states, valid=valid)


def trim(states: States) -> States:
    """Drops the columns that no sequence uses. It looks at the values, so on an accelerator it would wait for them."""
    used = states.valid.any(0)
    if bool(used.all()):
        return states
    keep = used.nonzero().squeeze(1)
    moved = torch.cat((used.long().cumsum(0) - 1, used.new_full((1,), -1, dtype=torch.long)))
    front = int(used[: states.in_place].sum())
    return replace(
        states,
        tokens=states.tokens[:, keep],
        block=states.block[:, keep],
        parent=moved[states.parent[:, keep]],
        taken=states.taken[:, keep],
        valid=states.valid[:, keep],
        root=int(moved[states.root]),
        in_place=front,
    )
