"""The protocol of a drafter, and the one loop by which logits become a draft with a temporal order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from simsd.core import sampling
from simsd.core.draft import BlockState, Draft
from simsd.core.sampling import Sampler
from simsd.core.schedule import Schedule, reveal


class SequenceView(Protocol):
    """What a drafter may know of a sequence."""

    @property
    def text_ids(self) -> Sequence[int]:
        """The prompt and all finished blocks."""
        ...

    @property
    def block(self) -> Sequence[int]:
        """The block under decoding, MASK where unknown."""
        ...

    @property
    def taken(self) -> int:
        """Denoising steps taken in that block."""
        ...

    @property
    def memory(self) -> dict[str, Any]:
        """Where a drafter keeps what it knows of this sequence; it lives and dies with the sequence."""
        ...


@dataclass(frozen=True)
class DraftRequest:
    """One round's order to a drafter, for the N sequences of a batch.

    blocks:    W, the window in blocks.
    by_draw:   True: draw everywhere with the target's own noise and let the schedule choose among the draws, as the
               target does (right for replay). False: choose positions from the distributions first and draw then,
               which keeps q the true law of the token (what rejection sampling needs, method section 5).
    salt:      [N] a number that differs from round to round, so that proposals of two rounds are independent.
    steady:    True where the work may not depend on values, as in a recorded graph.
    """

    state: BlockState
    blocks: int
    sampler: Sampler
    schedule: Schedule
    by_draw: bool
    salt: Tensor
    sequences: Sequence[SequenceView]
    steady: bool = False


Window = Callable[[int], int]
"""The fewest masks that a current block of the batch has -> blocks of the window."""


class Drafter(Protocol):
    """Guesses how decoding goes on. Whatever it guesses, an exact method's text stays the same."""

    @property
    def forwards(self) -> int:
        """Forward passes of a draft model so far."""
        ...

    @property
    def ahead(self) -> int:
        """Drafts so far that were made before they were asked for (`expect`)."""
        ...

    @property
    def wants_logits(self) -> bool:
        """True for drafters that `observe`."""
        ...

    @property
    def most_blocks(self) -> int:
        """Blocks that it can draft at a time."""
        ...

    def propose(self, request: DraftRequest) -> Draft:
        """A draft over `request.blocks` blocks."""
        ...

    def expect(self, reached: Callable[[], Tensor], left: Sequence[int], window: Window) -> None:
        """The target is about to verify the draft just proposed: time to get on with the next one.

        reached: gives [N], the steps of the draft that will have happened if the target agrees with it.
        left: blocks that each sequence still needs, the current one included.
        window: blocks that the next round is likely to ask for.
        """
        ...

    def close(self) -> None:
        """Ends what works beside the rounds."""
        ...

    def admit(self, sequence: SequenceView, slot: int, soon: bool = True) -> None:
        """A new sequence takes a place in the batch. soon: a draft for it is about to be asked for; prefill goes here.
        Else it may go where one is, in `catch_up`."""
        ...

    def catch_up(self, sequences: Sequence[SequenceView], blocks: int) -> bool:
        """A draft over so many blocks is about to be asked for: time to read what was written while none was. True if
        that took work, which is then done."""
        ...

    def leave(self, sequence: SequenceView, slot: int, mover: SequenceView, last: int) -> None:
        """A sequence leaves its place; `mover`, at the place `last`, takes it. They may be the same."""
        ...

    def observe(self, sequence: SequenceView, logits: Tensor | None) -> None:
        """The target's newest logits [B, V] of the block under decoding; None where it has none (a new block)."""
        ...


LogitsOf = Callable[[int, Tensor, Tensor], Tensor]
"""(block w, its tokens [N, B], all blocks before it [N, w, B]) -> logits [N, B, V]."""


def order_guesses(
    request: DraftRequest, block: int, logits: Tensor, tokens: Tensor, taken: Tensor, steps: int
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Up to `steps` steps of the target's own schedule, all read from one set of logits.

    logits [N, B, V], tokens [N, B], taken [N] steps already taken in the block.
    Returns the tokens afterwards, the step [N, B] (1.. in this call, 0 elsewhere), the doubt [N, B] about each token
    and the proposals [N, B, V].
    """
    state, sampler, schedule = request.state, request.sampler, request.schedule
    place = state.positions(block + 1)[:, block]
    step_of = torch.zeros_like(tokens)
    doubt_of = torch.zeros_like(logits[..., 0])
    proposal = None
    if request.by_draw:
        guess, doubt, entropy = tokens, None, None
    else:
        scaled = sampling.scale(logits, sampler)
        best = sampling.draw(scaled, replace(sampler, random=False), None, entropy=schedule.needs_entropy)
        doubt, entropy, guess = best.doubt, best.entropy, best.token
        if sampler.random:
            proposal = sampling.distribution(logits, sampler)
            key = sampling.noise_key(sampler.seed[:, None], sampling.PROPOSE, request.salt[:, None], place)
            guess = (proposal.log() + sampling.gumbel(key, logits.shape[-1])).argmax(-1)
    for step in range(steps):
        masked = tokens == state.mask_id
        if masked.device.type == "cpu" and not request.steady and not masked.any():
            break
        time = taken + step
        if request.by_draw and (step == 0 or sampler.random):
            key = None
            if sampler.random:
                key = sampling.noise_key(sampler.seed[:, None], sampling.TARGET, place, time[:, None])
            drawn = sampling.draw(logits, sampler, key, entropy=schedule.needs_entropy)
            guess, doubt, entropy = drawn.token, drawn.doubt, drawn.entropy
        assert doubt is not None
        noise = order_noise(sampler, schedule, place, time)
        shown = reveal(schedule, masked, time, doubt, entropy, noise)
        tokens = torch.where(shown, guess, tokens)
        step_of = torch.where(shown, step + 1, step_of)
        doubt_of = torch.where(shown, doubt, doubt_of)
    return tokens, step_of, doubt_of, proposal


def order_noise(sampler: Sampler, schedule: Schedule, place: Tensor, taken: Tensor) -> Tensor | None:
    """The noise [N, ..., B] by which the strategy `random` chooses; the same for draft and target."""
    if "random" not in schedule.present:
        return None
    seed = sampler.seed.view(-1, *[1] * (place.dim() - 1))
    return sampling.uniform(sampling.noise_key(seed, sampling.ORDER, place, taken[..., None]), torch.float64)


def propose_with(request: DraftRequest, logits_of: LogitsOf, forwards: int, known: Tensor | None = None) -> Draft:
    """A draft from any source of logits: `forwards` looks a block, each ordering its share of the block's steps.

    known: [N] False for sequences of which the source knows nothing; these get an empty draft.
    """
    state = request.state
    size = state.tokens.shape[1]
    share = -(-size // forwards)
    blocks: list[Tensor] = []
    steps: list[Tensor] = []
    doubts: list[Tensor] = []
    proposals: list[Tensor | None] = []
    last = torch.zeros_like(state.start)
    for w in range(request.blocks):
        tokens = state.tokens if w == 0 else torch.full_like(state.tokens, state.mask_id)
        taken = state.taken if w == 0 else torch.zeros_like(state.taken)
        before = torch.stack(blocks, 1) if blocks else tokens[:, None][:, :0]
        step = torch.zeros_like(tokens)
        doubt: Tensor | None = None
        proposal: Tensor | None = None
        done = torch.zeros_like(last)
        for look in range(forwards):
            logits = logits_of(w, tokens, before)
            count = share if look + 1 < forwards else size
            guess, local, unsure, law = order_guesses(request, w, logits, tokens, taken + done, count)
            if law is not None:
                proposal = law if proposal is None else torch.where((local > 0)[..., None], law, proposal)
            doubt = unsure if doubt is None else torch.where(local > 0, unsure, doubt)
            step = torch.where(local > 0, local + done[:, None], step)
            tokens = guess
            done = step.amax(-1)
        if known is not None:
            tokens = torch.where(known[:, None], tokens, state.tokens if w == 0 else state.mask_id)
            step = torch.where(known[:, None], step, 0)
        blocks.append(tokens)
        steps.append(torch.where(step > 0, step + last[:, None], 0))
        assert doubt is not None
        doubts.append(doubt)
        proposals.append(proposal)
        last = last + step.amax(-1)
    tokens, step = torch.stack(blocks, 1), torch.stack(steps, 1)
    step = torch.where(tokens == state.mask_id, last[:, None, None] + 1, step)
    laws = [p for p in proposals if p is not None]
    return Draft(tokens, step, state.mask_id, torch.stack(laws, 1) if laws else None, torch.stack(doubts, 1))


def side_by_side(seen: Sequence[Tensor | None]) -> Tensor | None:
    """[N, B, V] each sequence's logits, zeros for those that have none; None where nobody has any."""
    some = next((logits for logits in seen if logits is not None), None)
    return None if some is None else torch.stack([torch.zeros_like(some) if one is None else one for one in seen])


class NoMemory:
    """The parts of the protocol that most drafters do not need."""

    forwards = 0
    ahead = 0
    wants_logits = False
    most_blocks = sys.maxsize

    def expect(self, reached: Callable[[], Tensor], left: Sequence[int], window: Window) -> None:
        return None

    def close(self) -> None:
        return None

    def admit(self, sequence: SequenceView, slot: int, soon: bool = True) -> None:
        return None

    def catch_up(self, sequences: Sequence[SequenceView], blocks: int) -> bool:
        return False

    def leave(self, sequence: SequenceView, slot: int, mover: SequenceView, last: int) -> None:
        return None

    def observe(self, sequence: SequenceView, logits: Tensor | None) -> None:
        return None


class Around:
    """A drafter around another one, which does whatever is not said otherwise."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter

    @property
    def forwards(self) -> int:
        return self.drafter.forwards

    @property
    def ahead(self) -> int:
        return self.drafter.ahead

    @property
    def wants_logits(self) -> bool:
        return self.drafter.wants_logits

    @property
    def most_blocks(self) -> int:
        return self.drafter.most_blocks

    def propose(self, request: DraftRequest) -> Draft:
        return self.drafter.propose(request)

    def expect(self, reached: Callable[[], Tensor], left: Sequence[int], window: Window) -> None:
        self.drafter.expect(reached, left, window)

    def close(self) -> None:
        self.drafter.close()

    def admit(self, sequence: SequenceView, slot: int, soon: bool = True) -> None:
        self.drafter.admit(sequence, slot, soon)

    def catch_up(self, sequences: Sequence[SequenceView], blocks: int) -> bool:
        return self.drafter.catch_up(sequences, blocks)

    def leave(self, sequence: SequenceView, slot: int, mover: SequenceView, last: int) -> None:
        self.drafter.leave(sequence, slot, mover, last)

    def observe(self, sequence: SequenceView, logits: Tensor | None) -> None:
        self.drafter.observe(sequence, logits)
