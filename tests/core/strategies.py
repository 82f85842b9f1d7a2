"""Hypothesis strategies: states and drafts as decoding produces them."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from simsd.core.draft import BlockState, Draft
from tests.core.cases import MASK


@st.composite
def situations(draw: st.DrawFn, max_size: int = 5, max_blocks: int = 3, max_batch: int = 3, vocab: int = 4):
    """(BlockState, Draft): any known tokens, and any draft that keeps the rules in the docstring of `Draft`."""
    size, blocks = draw(st.integers(1, max_size)), draw(st.integers(1, max_blocks))
    batch = draw(st.integers(1, max_batch))
    tokens, steps, now = [], [], []
    for _ in range(batch):
        known = draw(st.lists(st.one_of(st.just(MASK), st.integers(0, vocab - 1)), min_size=size, max_size=size))
        known[draw(st.integers(0, size - 1))] = MASK
        row, tau = _draft(draw, known, blocks, vocab)
        now.append(known)
        tokens.append(row)
        steps.append(tau)
    taken = draw(st.lists(st.integers(0, 3), min_size=batch, max_size=batch))
    start = [size * k for k in draw(st.lists(st.integers(0, 5), min_size=batch, max_size=batch))]
    state = BlockState(torch.tensor(now), torch.tensor(start), torch.tensor(taken), MASK)
    return state, Draft(torch.tensor(tokens), torch.tensor(steps), MASK)


def _draft(draw: st.DrawFn, known: list[int], blocks: int, vocab: int) -> tuple[list[list[int]], list[list[int]]]:
    size = len(known)
    tokens, steps, last = [], [], 0
    open_to_drafts = True
    for w in range(blocks):
        row = list(known) if w == 0 else [MASK] * size
        free = [i for i in range(size) if row[i] == MASK]
        tau = [0] * size
        count = draw(st.integers(0, len(free))) if open_to_drafts else 0
        step = last
        for place in draw(st.permutations(free))[:count]:
            if step == last or draw(st.booleans()):
                step += 1
            row[place], tau[place] = draw(st.integers(0, vocab - 1)), step
        last = step
        open_to_drafts = MASK not in row
        tokens.append(row)
        steps.append(tau)
    for row, tau in zip(tokens, steps, strict=True):
        tau[:] = [last + 1 if token == MASK else step for token, step in zip(row, tau, strict=True)]
    return tokens, steps
