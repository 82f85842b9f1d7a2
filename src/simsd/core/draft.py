"""What is known and what is guessed: a block, and a draft with its temporal step map (method section 3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BlockState:
    """The block under decoding, for N sequences.

    tokens: [N, B] ids, MASK where unknown.
    start:  [N] absolute position of the block's first token.
    taken:  [N] denoising steps already taken in this block.
    """

    tokens: Tensor
    start: Tensor
    taken: Tensor
    mask_id: int

    @property
    def masked(self) -> Tensor:
        """[N, B], True where a token is still unknown."""
        return self.tokens == self.mask_id

    def positions(self, blocks: int = 1) -> Tensor:
        """[N, blocks, B] absolute positions of this block and those after it."""
        size = self.tokens.shape[1]
        offsets = torch.arange(blocks * size, device=self.tokens.device).view(1, blocks, size)
        return self.start[:, None, None] + offsets


@dataclass(frozen=True)
class Draft:
    """A guessed continuation of a `BlockState` over a window of W blocks.

    tokens:   [N, W, B] ids: known and drafted tokens, MASK where nothing was drafted.
    step:     [N, W, B] tau: 0 known, 1..n drafted, n + 1 left masked. Steps count on from block to block.
    proposal: [N, W, B, V] the law each token was drawn from, or None where the draft is certain of itself
              (then q is a point mass on the drafted token).
    doubt:    [N, W, B] log((1 - c) / c) of the draft's confidence c in each token, or None where it has none.

    A block is drafted into only if all blocks before it are complete, and every step of a later block is later.
    """

    tokens: Tensor
    step: Tensor
    mask_id: int
    proposal: Tensor | None = None
    doubt: Tensor | None = None

    def __post_init__(self) -> None:
        if self.tokens.dim() != 3 or self.tokens.shape != self.step.shape:
            raise ValueError(
                f"tokens {tuple(self.tokens.shape)} and step {tuple(self.step.shape)} must both be [N, W, B]"
            )

    @property
    def drafted(self) -> Tensor:
        """[N, W, B], True where the draft put a token."""
        return (self.step > 0) & (self.tokens != self.mask_id)

    @property
    def complete(self) -> Tensor:
        """[N, W], True where a block has no MASK left."""
        return (self.tokens != self.mask_id).all(-1)

    @property
    def last(self) -> Tensor:
        """[N] number n of drafted steps."""
        return (self.step * self.drafted).amax((1, 2))

    @property
    def before(self) -> Tensor:
        """[N, W] drafted steps in all blocks before."""
        last = (self.step * self.drafted).amax(-1).cummax(-1).values
        return torch.cat((torch.zeros_like(last[:, :1]), last[:, :-1]), 1)

    def local_step(self) -> Tensor:
        """[N, W, B] the step counted inside its block: 0 known, 1..n_w drafted, n_w + 1 left masked."""
        return (self.step - self.before[..., None]).clamp(min=0) * (self.step > 0)


def empty_draft(state: BlockState, blocks: int = 1) -> Draft:
    """The draft that guesses nothing: verifying it is one ordinary step (method section 5)."""
    more = state.tokens.new_full((*state.tokens.shape[:1], blocks - 1, state.tokens.shape[1]), state.mask_id)
    tokens = torch.cat((state.tokens[:, None], more), 1)
    return Draft(tokens, (tokens == state.mask_id).long(), state.mask_id)


def first_blocks(draft: Draft, blocks: int) -> Draft:
    """The same draft over a shorter window: no block depends on those behind it."""
    if blocks == draft.tokens.shape[1]:
        return draft
    laws, doubt = draft.proposal, draft.doubt
    return Draft(
        draft.tokens[:, :blocks],
        draft.step[:, :blocks],
        draft.mask_id,
        None if laws is None else laws[:, :blocks],
        None if doubt is None else doubt[:, :blocks],
    )


def limit(draft: Draft, tokens: int, whole_steps: bool = True) -> Draft:
    """Keeps the first `tokens` drafted tokens (the window gamma) in temporal order.

    With `whole_steps` a step that does not fit is dropped as a whole, because half a step is a state that no
    schedule reaches; the very first step is cut if it alone is longer than the window.
    """
    if tokens < 1:
        raise ValueError(f"a window of {tokens} tokens drafts nothing; it must be 1 or more")
    size = draft.tokens[0].numel()
    if tokens >= size:
        return draft
    shape, step, drafted = draft.tokens.shape, draft.step.flatten(1), draft.drafted.flatten(1)
    order = step * size + torch.arange(size, device=step.device)  # by step, then by position
    order = torch.where(drafted, order, torch.iinfo(step.dtype).max)
    rank = (order[:, :, None] > order[:, None, :]).sum(-1)
    keep = drafted & (rank < tokens)
    if whole_steps:
        cut = drafted & ~keep
        broken = torch.where(cut, step, torch.iinfo(step.dtype).max).amin(-1, keepdim=True)
        keep &= (step < broken) | (step == 1)
    ids = torch.where(keep | (step == 0), draft.tokens.flatten(1), draft.mask_id)
    last = (step * keep).amax(-1, keepdim=True)
    step = torch.where(keep | (step == 0), step, last + 1)
    return Draft(ids.view(shape), step.view(shape), draft.mask_id, draft.proposal, draft.doubt)
