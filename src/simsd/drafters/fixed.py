"""Drafts that are tokens, not distributions: a point-mass law, the same at every temperature (method section 3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from simsd.core.draft import Draft
from simsd.core.tensors import sent
from simsd.drafters.base import DraftRequest

Guess = tuple[Sequence[int], Sequence[int]]
"""Tokens and steps (any rising numbers) for the positions from the block's start on; may end early."""


def fixed_draft(request: DraftRequest, guesses: Sequence[Guess]) -> Draft:
    """Puts one guess for each sequence on the window's masked positions.

    Equal step numbers inside a block stay one step. A block that a guess does not complete ends the draft.
    """
    state = request.state
    size = state.tokens.shape[1]
    width = request.blocks * size
    device = state.tokens.device
    cut = [(list(tokens[:width]), list(steps[:width])) for tokens, steps in guesses]
    ids, order = sent(
        device,
        [token for tokens, _ in cut for token in (*tokens, *[state.mask_id] * (width - len(tokens)))],
        [step for _, steps in cut for step in (*steps, *[0] * (width - len(steps)))],
    )
    ids, order = ids.view(-1, request.blocks, size), order.view(-1, request.blocks, size)
    ids[:, 0] = torch.where(state.masked, ids[:, 0], state.tokens)
    given = ids != state.mask_id
    masked = torch.ones_like(given)
    masked[:, 0] = state.masked
    whole = given.all(-1).long().cumprod(-1).bool()
    open_to = torch.cat((torch.ones_like(whole[:, :1]), whole[:, :-1]), 1)[..., None]
    drafted = given & masked & open_to
    # dense step numbers inside each block: how many different earlier steps there are
    mine, other = order[..., :, None], order[..., None, :]
    index = torch.arange(size, device=device)
    same_earlier = (other == mine) & (index[None, :] < index[:, None]) & drafted[..., None, :]
    leads = drafted & ~same_earlier.any(-1)  # the first position of each step
    local = (leads[..., None, :] & (other <= mine)).sum(-1) * drafted
    count = local.amax(-1)
    before = count.cumsum(-1) - count
    step = torch.where(drafted, local + before[..., None], 0)
    step = torch.where(masked & ~drafted, count.sum(-1)[:, None, None] + 1, step)
    return Draft(torch.where(drafted | ~masked, ids, state.mask_id), step, state.mask_id)
