"""Drafts from a smaller block-diffusion model with the same tokenizer: the paper's case (method section 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from simsd.core.draft import BlockState, Draft
from simsd.core.layout import Layout, unrolled, with_pending
from simsd.core.prefix import Bucket, Prefix
from simsd.core.states import States
from simsd.core.tensors import sent
from simsd.drafters.base import DraftRequest, NoMemory, SequenceView, propose_with, side_by_side

FEW = 8  # blocks that go along with the first forward of a draft: steady drafting is never further behind


class Forward(Protocol):
    """What runs the draft model; the engine provides it."""

    @property
    def piece(self) -> int: ...

    def run(self, function: Callable[[Any], Any], given: Any) -> Any: ...

    def prefix(self, stored: Sequence[int], skipped: Sequence[int], there: Tensor, ahead: int = 0) -> Prefix: ...

    def logits(self, layout: Layout, prefix: Prefix) -> Tensor: ...

    def open(self, slot: int, ids: Sequence[int]) -> int: ...

    def prefill(self, slot: int, ids: Sequence[int], stored: int) -> None: ...

    def settle(self) -> None: ...

    def hold(self, slot: int, ids: Sequence[int]) -> None: ...

    def leave(self, slot: int, ids: Sequence[int], last: int, stored: int) -> None: ...


@dataclass(frozen=True)
class Inputs:
    """All that a draft depends on, beside the weights and the cache; host values in it differ rarely.

    request: without its sequences.
    recent:  [N, L, B] blocks finished since the last draft, the last `count` [N] of them real.
    behind:  what the cache holds; whole: what it holds when those have run.
    seen:    [N, B, V] the target's own logits of the block under decoding, or None where nobody has any.
    known:   [N] True where `seen` has some, or None where nobody or everybody has.
    """

    request: DraftRequest
    recent: Tensor
    count: Tensor
    behind: Prefix
    whole: Prefix
    seen: Tensor | None
    known: Tensor | None


@dataclass(frozen=True)
class Drafted:
    """A draft, and how many forwards it took."""

    draft: Draft
    forwards: int


class ModelDrafter(NoMemory):
    """A draft model with its own KV cache. Each draft brings the cache up to the target's text by the way: the
    blocks finished since the last one run in front of the first draft forward (method section 6)."""

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

    def admit(self, sequence: SequenceView, slot: int, soon: bool = True) -> None:
        stored = self.forward.open(slot, sequence.text_ids)
        sequence.memory["draft_stored"] = stored
        if soon or len(sequence.text_ids) - stored > self.forward.piece:  # a round is not to wait for long prompts
            self._prefill(sequence, slot)

    def catch_up(self, sequences: Sequence[SequenceView], blocks: int) -> bool:
        most = max(blocks, FEW) * self.block_length
        behind = [slot for slot, s in enumerate(sequences) if len(s.text_ids) - s.memory["draft_stored"] > most]
        for slot in behind:
            self._prefill(sequences[slot], slot)
        if behind:
            self.forward.settle()
        return bool(behind)

    def _prefill(self, sequence: SequenceView, slot: int) -> None:
        ids, stored = sequence.text_ids, sequence.memory["draft_stored"]
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
        drafted = self.forward.run(self._draft, self._inputs(request))
        self.forwards += drafted.forwards
        if drafted.forwards:
            for sequence in request.sequences:
                sequence.memory["draft_stored"] = len(sequence.text_ids)
        return drafted.draft

    def _inputs(self, request: DraftRequest) -> Inputs:
        """What the host knows, in tensors."""
        size, state = self.block_length, request.state
        stored = [s.memory["draft_stored"] for s in request.sequences]
        start = [len(s.text_ids) for s in request.sequences]
        behind = [(end - have) // size for end, have in zip(start, stored, strict=True)]
        lag = max(behind)
        skipped = [(lag - n) * size for n in behind]
        pairs = zip(skipped, stored, request.sequences, strict=True)
        filled = [token for skip, have, s in pairs for token in (*[state.mask_id] * skip, *s.text_ids[have:])]
        views = [s.memory.get("self_logits") for s in request.sequences]
        has = [logits is not None for logits in views]
        recent, count, there, known = sent(state.tokens.device, filled, behind, stored, has)
        whole = self.forward.prefix(start, [0] * len(start), state.start, ahead=(request.blocks - 1) * size)
        return Inputs(
            request=replace(request, sequences=(), steady=isinstance(whole, Bucket)),
            recent=recent.view(len(behind), lag, size),
            count=count,
            behind=self.forward.prefix(stored, skipped, there),
            whole=whole,
            seen=side_by_side(views),
            known=known > 0 if any(has) and not all(has) else None,
        )

    def _draft(self, given: Inputs) -> Drafted:
        """The whole window as one piece of work."""
        size, state, seen = self.block_length, given.request.state, given.seen
        forwards = 0

        def logits_of(w: int, tokens: Tensor, before: Tensor) -> Tensor:
            nonlocal forwards
            if w == 0 and seen is not None and given.known is None:
                return seen
            here = BlockState(tokens, state.start + w * size, state.taken, state.mask_id)
            layout = unrolled(here, _single(here))
            # the guessed block in front is rewritten at each look: it may be stored from another round
            guessed = before[:, -1:]
            if forwards == 0:  # the blocks finished since the last round still have to run
                front = torch.cat((given.recent, guessed), 1)
                layout = with_pending(layout, front, given.count + guessed.shape[1], here.start)
                logits = self.forward.logits(layout, given.behind)
            else:
                count = torch.full_like(given.count, guessed.shape[1])
                layout = with_pending(layout, guessed, count, here.start)
                logits = self.forward.logits(layout, given.whole.and_on(max(w - 1, 0) * size))
            forwards += 1
            if w == 0 and seen is not None and given.known is not None:  # each sequence its own best source
                logits = torch.where(given.known[:, None, None], seen.to(logits.dtype), logits)
            return logits

        return Drafted(propose_with(given.request, logits_of, self.draft_steps), forwards)


def _single(state: BlockState) -> States:
    """The state of the block alone."""
    one = torch.zeros_like(state.start[:, None])
    return States(state.tokens[:, None], one, one - 1, one, one == 0, state.mask_id)
