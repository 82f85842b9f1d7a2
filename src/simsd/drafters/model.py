"""Drafts from a smaller block-diffusion model with the same tokenizer: the paper's case (method section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from simsd.core.draft import BlockState, Draft
from simsd.core.layout import Layout, unrolled, with_pending
from simsd.core.states import States
from simsd.drafters.base import DraftRequest, NoMemory, SequenceView, propose_with


class Forward(Protocol):
    """What runs the draft model; the engine provides it."""

    def logits(self, layout: Layout, stored: Sequence[int], skipped: Sequence[int]) -> Tensor: ...

    def open(self, slot: int, ids: Sequence[int]) -> int: ...

    def prefill(self, slot: int, ids: Sequence[int], stored: int) -> None: ...

    def hold(self, slot: int, ids: Sequence[int]) -> None: ...

    def leave(self, slot: int, ids: Sequence[int], last: int, stored: int) -> None: ...


class ModelDrafter(NoMemory):
    """A draft model with its own KV cache. Each round brings the cache up to the target's text by the way: the
    blocks finished since the last round run in front of the first draft forward (method section 6)."""

    def __init__(
        self, forward: Forward, block_length: int, draft_steps: int = 1, *, target_first: bool = False
    ) -> None:
        """draft_steps: forwards of the draft model for each block of the window.

        target_first: where the target has already looked at the block under decoding, its own logits of the last
        verification are the guesses there (they are better and free), and the draft model guesses the blocks behind.
        """
        self.wants_logits = target_first
        self.forward = forward
        self.block_length = block_length
        self.draft_steps = draft_steps
        self.forwards = 0

    def admit(self, sequence: SequenceView, slot: int) -> None:
        ids = sequence.text_ids
        stored = self.forward.open(slot, ids)
        self.forward.prefill(slot, ids[stored:], stored)
        self.forward.hold(slot, ids)
        sequence.memory["draft_stored"] = len(ids)

    def leave(self, sequence: SequenceView, slot: int, mover: SequenceView, last: int) -> None:
        ids, kept = sequence.text_ids[: sequence.memory["draft_stored"]], mover.memory["draft_stored"]
        sequence.memory["draft_stored"] = mover.memory["draft_stored"] = 0  # an interruption leaves none in its place
        self.forward.leave(slot, ids, last, kept)
        mover.memory["draft_stored"] = kept

    def observe(self, sequence: SequenceView, logits: Tensor | None) -> None:
        sequence.memory["self_logits"] = logits

    def propose(self, request: DraftRequest) -> Draft:
        size, state = self.block_length, request.state
        stored = [s.memory["draft_stored"] for s in request.sequences]
        behind = [(len(s.text_ids) - have) // size for s, have in zip(request.sequences, stored, strict=True)]
        lag = max(behind)
        fill = [[state.mask_id] * ((lag - n) * size) for n in behind]
        recent = [f + list(s.text_ids[have:]) for f, s, have in zip(fill, request.sequences, stored, strict=True)]
        recent_ids = torch.tensor(recent, dtype=torch.long, device=state.tokens.device).view(len(behind), lag, size)
        count = torch.tensor(behind, device=state.tokens.device)
        start = [len(s.text_ids) for s in request.sequences]
        skipped = [(lag - n) * size for n in behind]
        seen = [s.memory.get("self_logits") for s in request.sequences]
        known = [logits for logits in seen if logits is not None]
        behind_now = True  # the blocks finished since the last round still have to run

        def logits_of(w: int, tokens: Tensor, before: Tensor) -> Tensor:
            nonlocal behind_now
            if w == 0 and len(known) == len(seen):
                return torch.stack(known)
            here = BlockState(tokens, state.start + w * size, state.taken, state.mask_id)
            layout = unrolled(here, _single(here))
            self.forwards += 1
            # the guessed block in front is rewritten at each look: it may be stored from another round
            guessed = before[:, -1:]
            if behind_now:
                behind_now = False
                front = torch.cat((recent_ids, guessed), 1)
                layout = with_pending(layout, front, count + guessed.shape[1], here.start)
                logits = self.forward.logits(layout, stored, skipped)
            else:
                layout = with_pending(layout, guessed, torch.full_like(count, guessed.shape[1]), here.start)
                logits = self.forward.logits(layout, [at + max(w - 1, 0) * size for at in start], [0] * len(start))
            if w == 0 and known:  # each sequence its own best source, whatever the others of the batch have
                pairs = zip(seen, logits, strict=True)
                logits = torch.stack([own if mine is None else mine.to(own.dtype) for mine, own in pairs])
            return logits

        draft = propose_with(request, logits_of, self.draft_steps)
        if not behind_now:
            for sequence, at in zip(request.sequences, start, strict=True):
                sequence.memory["draft_stored"] = at
        return draft


def _single(state: BlockState) -> States:
    """The state of the block alone."""
    one = torch.zeros_like(state.start[:, None])
    return States(state.tokens[:, None], one, one - 1, one, one == 0, state.mask_id)
