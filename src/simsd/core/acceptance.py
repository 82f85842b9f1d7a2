"""What of a draft is kept, always in temporal order (method section 5)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from simsd.core.draft import BlockState, Draft
from simsd.core.sampling import Drawn
from simsd.core.states import States


@dataclass(frozen=True)
class Outcome:
    """What one verification commits, over a window of W blocks.

    tokens:   [N, W, B] the blocks afterwards, MASK where still unknown (holes are allowed).
    taken:    [N, W, B] the denoising step (counted inside the block, from 0) that revealed each token of this round,
              -1 elsewhere.
    source:   [N, W, B] index of the judged entry (a state, or a block of the window) that the token came from,
              -1 elsewhere.
    accepted: [N, W, B] True where the draft's token was kept because the draft had foreseen it; the other tokens of
              the round are the target's own correction or bonus.
    entry:    [N] the last judged entry, whose logits are the target's newest view of its block.
    """

    tokens: Tensor
    taken: Tensor
    source: Tensor
    accepted: Tensor
    entry: Tensor
    mask_id: int

    @property
    def finished(self) -> Tensor:
        """[N] number of leading blocks without a MASK."""
        return (self.tokens != self.mask_id).all(-1).long().cumprod(-1).sum(-1)


def replay(state: BlockState, states: States, token: Tensor, revealed: Tensor, depth: int, timed: bool) -> Outcome:
    """Walks the set of states with the target's own steps; the text is ordinary decoding's.

    token, revealed: [N, S, B] what the target's step puts where, from each state (of finished states nothing).
    depth: an upper bound on the steps of a walk.
    timed: True where a step depends on the number of steps before it (noise, uneven quotas): then a state stands
           for the walk only if it was reached in the same number of steps.
    """
    size = states.tokens.shape[2]
    landed, visited, taken, here = _walk(state, states, torch.where(revealed, token, states.tokens), depth, timed)
    blocks = states.blocks
    which = torch.arange(blocks, device=token.device)
    shown = visited[..., None] & revealed  # [N, S, B]
    put = shown[:, None] & (states.block[:, None] == which[:, None])[..., None]  # [N, W, S, B]
    new = put.any(2)
    source = put.long().argmax(2)

    before = torch.full_like(source, states.mask_id)
    before[:, 0] = state.tokens
    nothing = torch.full_like(source, -1)
    return Outcome(
        tokens=torch.where(new, token.gather(1, source), before),
        taken=torch.where(new, taken[..., None].expand(-1, -1, size).gather(1, source), nothing),
        source=torch.where(new, source, nothing),
        accepted=new & landed[..., None].expand(-1, -1, size).gather(1, source),
        entry=here.squeeze(1),
        mask_id=states.mask_id,
    )


def _walk(
    state: BlockState, states: States, after: Tensor, depth: int, timed: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each state [N, S]: whether its step leads to another one, whether it is visited, and the steps taken in its
    block before it; and the last one visited [N, 1].

    after: [N, S, B] each state behind its step.
    """
    batch, count, _ = states.tokens.shape
    here = torch.full((batch, 1), states.root, device=after.device)
    visited = torch.zeros(batch, count, dtype=torch.bool, device=after.device)
    if count == 1:  # nowhere to go
        return visited, ~visited, state.taken[:, None], here
    same_block = states.block[:, :, None] == states.block[:, None]
    same = (after[:, :, None] == states.tokens[:, None]).all(-1)  # [N, from, to]
    same &= same_block & (states.parent[:, :, None] == states.parent[:, None])
    same &= states.valid[:, None, :] & ~states.finished[:, :, None]
    if timed:
        in_time = states.taken[:, :, None] + 1 == states.taken[:, None]
        same &= in_time | states.finished[:, None]  # behind a finished block the count begins again
    landed = same.any(-1)
    lands = same.long().argmax(-1)

    # from a finished state the walk goes on at the empty state that sees it
    index = torch.arange(count, device=after.device)
    empty = (states.tokens == states.mask_id).all(-1) & states.valid
    entry = (states.parent[:, None, :] == index[:, None]) & empty[:, None, :]  # [N, finished, empty]
    onward = torch.where(entry.any(-1), entry.long().argmax(-1), index)
    step_to = torch.where(landed, onward.gather(1, lands), -1)
    for _ in range(min(depth, count)):  # none is visited twice
        visited.scatter_(1, here, True)
        there = step_to.gather(1, here)
        here = torch.where(there < 0, here, there)

    # an untimed walk may take fewer steps to a state than the draft did: count the steps of the walk itself
    known = (states.tokens != states.mask_id).sum(-1)
    earlier = visited[:, None] & same_block & (known[:, None] < known[:, :, None])
    taken = earlier.sum(-1) + torch.where(states.block == 0, state.taken[:, None], 0)
    return landed, visited, taken, here


def in_draft_order(
    state: BlockState, draft: Draft, token: Tensor, keep: Tensor, bonus: Tensor, judged: Tensor
) -> Outcome:
    """Keeps the draft up to its first step with a token that is not kept; that step's other verdict is `token`.

    token: [N, W, B] the target's own token where the draft's is not kept, or where nothing was drafted.
    keep:  [N, W, B] the verdict on every drafted token.
    bonus: [N, W, B] places that the target's own next step reveals, should the whole draft be kept.
    judged: [N, W, B] False where no row judged the place.
    Tokens of one step are judged side by side: they do not depend on each other, so all verdicts of the step count.
    """
    drafted = draft.drafted
    beyond = draft.step.flatten(1).amax(-1) + 1
    failed = torch.where(drafted & ~keep, draft.step, beyond[:, None, None]).amin((1, 2))
    reached = drafted & (draft.step <= failed[:, None, None])
    free = bonus & judged & (failed == beyond)[:, None, None] & ~drafted
    accepted = reached & keep
    before = torch.full_like(draft.tokens, draft.mask_id)
    before[:, 0] = state.tokens
    new = reached | free
    base = torch.zeros_like(draft.step)
    base[:, 0] = state.taken[:, None]
    window = torch.arange(draft.tokens.shape[1], device=draft.tokens.device)[:, None]
    tokens = torch.where(accepted, draft.tokens, torch.where(new, token, before))
    done = (tokens != draft.mask_id).all(-1).long().cumprod(-1).sum(-1)
    return Outcome(
        tokens=tokens,
        taken=torch.where(new, base + draft.local_step() - 1, -1),
        source=torch.where(new, window, -1),
        accepted=accepted,
        entry=done.clamp(max=tokens.shape[1] - 1),
        mask_id=draft.mask_id,
    )


def match(draft: Draft, drawn: Drawn) -> Tensor:
    """[N, W, B] verdicts at temperature 0: the draft's token is kept iff it is the target's."""
    return drawn.token == draft.tokens


def rejection(draft: Draft, target: Tensor, chance: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Rejection sampling of each drafted token by itself: (keep [N, W, B], the token to put where not kept).

    target: [N, W, B, V] probabilities p of the target, after temperature, top-k and top-p.
    chance: [N, W, B] uniform numbers in (0, 1); noise: [N, W, B, V] Gumbel noise for the residual draw.
    Kept with probability min(1, p/q), else a draw from norm(max(0, p - q)): the token then follows p exactly,
    provided that the draft drew it from q (method section 5). Where nothing was drafted the draw is from p.
    """
    index = draft.tokens[..., None]
    p = target.gather(-1, index).squeeze(-1)
    if draft.proposal is None:
        q = torch.ones_like(p)
        residual = target.scatter(-1, index, 0.0)
    else:
        q = draft.proposal.gather(-1, index).squeeze(-1)
        residual = (target - draft.proposal).clamp(min=0)
    keep = chance * q < p
    residual = torch.where(draft.drafted[..., None], residual, target)
    # p == q everywhere leaves nothing to draw from; it is never reached but by rounding
    residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, target)
    return keep, (residual.log() + noise).argmax(-1)
