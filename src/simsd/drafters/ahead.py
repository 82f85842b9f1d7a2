"""The next window, drafted while the target verifies this one: for a draft model on another device.

Nobody knows yet where the target will stand then, so the draft is for the place where it stands if it agrees with the
draft under verification as far as it looks at it. If it does, the next round finds its draft made; if not, that was
for nothing.

It is for replay alone: there the text depends on no draft, and the draft on nothing that differs from round to round,
so a draft made ahead is the draft that would have been made in time. It is all or nothing for a batch: whoever failed
would need a draft now, which costs the same forwards as one for everybody.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from simsd.core.draft import Draft, first_blocks
from simsd.core.tensors import sent
from simsd.drafters.base import Around, Drafter, DraftRequest, SequenceView, Window


@dataclass(frozen=True)
class Standing:
    """A sequence at some moment; it stays so whatever becomes of the sequence.

    new: steps of the draft that were taken in its block, counted from the moment before.
    """

    text_ids: list[int]
    block: list[int]
    taken: int
    memory: dict[str, Any]
    new: int = 0

    @classmethod
    def of(cls, sequence: SequenceView) -> Standing:
        return cls([*sequence.text_ids], [*sequence.block], sequence.taken, {**sequence.memory})

    def after(self, tokens: list[list[int]], steps: list[list[int]], count: int, mask_id: int) -> Standing:
        """Where it stands after the first `count` steps of a draft over W blocks; tokens, steps: [W, B]."""
        pairs = [list(zip(*block, strict=True)) for block in zip(tokens, steps, strict=True)]
        blocks = [[token if step <= count else mask_id for token, step in block] for block in pairs]
        done = next((w for w, block in enumerate(blocks) if mask_id in block), len(blocks))
        text = [*self.text_ids, *(token for block in blocks[:done] for token in block)]
        if done == len(blocks):
            return Standing(text, [mask_id] * len(self.block), 0, {**self.memory})
        new = len({step for step in steps[done] if 0 < step <= count})
        return Standing(text, blocks[done], new + (self.taken if done == 0 else 0), {**self.memory}, new)

    def agrees(self, sequence: SequenceView) -> bool:
        """Whether the sequence stands there."""
        here = (sequence.text_ids, sequence.block, sequence.taken)
        return (self.text_ids, self.block, self.taken) == here


@dataclass(frozen=True)
class Made:
    """A draft for where each of `sequences` was expected to stand."""

    sequences: list[SequenceView]
    expected: list[Standing]
    draft: Draft

    def serves(self, request: DraftRequest) -> bool:
        """Whether it is the draft asked for. How sequences sample and reveal does not change while they live."""
        if request.blocks > self.draft.tokens.shape[1] or len(request.sequences) != len(self.sequences):
            return False
        each = zip(request.sequences, self.sequences, self.expected, strict=True)
        return request.by_draw and all(mine is own and then.agrees(mine) for mine, own, then in each)


Queue = Callable[[torch.device], AbstractContextManager[Any]]
"""Asked in one thread, it gives what puts another thread's work on a device behind that of the first."""


def queue_of(device: torch.device) -> AbstractContextManager[Any]:
    """The stream that this thread is on: another thread begins on the default one, and no order holds among streams."""
    return torch.cuda.stream(torch.cuda.current_stream(device)) if device.type == "cuda" else nullcontext()


class Ahead(Around):
    """Drafts between rounds, in one thread of its own. Nothing else touches the drafter while that works: the draft
    model's cache is the thread's, and what it writes there lies behind the text until the draft is used.

    Rounds and thread work in the same queue of the draft model's device. On the target's device that would leave
    nothing to be done at the same time, but for a CPU's cores.
    """

    def __init__(self, drafter: Drafter, queue: Queue = queue_of) -> None:
        super().__init__(drafter)
        self._queue = queue
        self._process = os.getpid()
        self._forwards = self._ahead = 0  # as of the newest draft: the thread may be counting
        self._pool: ThreadPoolExecutor | None = None
        self._newest: tuple[DraftRequest, Draft] | None = None  # what the target is about to verify
        self._work: Future[Made | None] | None = None

    @property
    def forwards(self) -> int:
        return self._forwards

    @property
    def ahead(self) -> int:
        return self._ahead

    def propose(self, request: DraftRequest) -> Draft:
        made = self._collect()
        if made is not None and made.serves(request):
            for sequence, expected in zip(request.sequences, made.expected, strict=True):
                sequence.memory.update(expected.memory)  # what the cache holds of the text that was expected then
            draft = first_blocks(made.draft, request.blocks)
            self._ahead += 1
        else:
            draft = self.drafter.propose(request)
        self._forwards = self.drafter.forwards
        self._newest = (request, draft) if request.by_draw else None
        return draft

    def expect(self, reached: Callable[[], Tensor], left: Sequence[int], window: Window) -> None:
        if self._newest is None:
            return
        (request, draft), self._newest = self._newest, None
        standing = [Standing.of(sequence) for sequence in request.sequences]  # the round goes on to change them
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "simsd-draft-ahead")
        request = replace(request, sequences=list(request.sequences))
        mode = torch.is_inference_mode_enabled()  # each thread has its own
        queue = self._queue(request.state.tokens.device)
        given = (self.drafter, request, draft, standing, reached(), left, window)
        self._work = self._pool.submit(_go_on, queue, mode, *given)

    def admit(self, sequence: SequenceView, slot: int, soon: bool = True) -> None:
        self._collect()  # of another batch
        self.drafter.admit(sequence, slot, soon)

    def catch_up(self, sequences: Sequence[SequenceView], blocks: int) -> bool:
        self._wait()  # until then the cache is the thread's
        return self.drafter.catch_up(sequences, blocks)

    def leave(self, sequence: SequenceView, slot: int, mover: SequenceView, last: int) -> None:
        self._collect()
        self.drafter.leave(sequence, slot, mover, last)

    def close(self) -> None:
        self._collect()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _wait(self) -> None:
        """Until the thread has made its draft, if it is at one."""
        if self._process != os.getpid():  # a fork: the thread is its parent's
            self._process, self._pool, self._work = os.getpid(), None, None
        if self._work is not None:
            wait([self._work])

    def _collect(self) -> Made | None:
        """What the thread made. None where that is nothing: a failure will come again, and be told, in time."""
        self._wait()
        work, self._work = self._work, None
        return None if work is None or work.exception() else work.result()


def _go_on(
    queue: AbstractContextManager[Any],
    inference: bool,
    drafter: Drafter,
    request: DraftRequest,
    draft: Draft,
    standing: list[Standing],
    reached: Tensor,
    left: Sequence[int],
    window: Window,
) -> Made | None:
    """A draft for where all will stand after `reached` [N] steps of this one; None where that would be for nothing.

    It waits for the draft model's device, and for no other.
    """
    with queue, torch.inference_mode(inference):
        mask_id, device = request.state.mask_id, request.state.tokens.device
        drafts = zip(standing, draft.tokens.tolist(), draft.step.tolist(), reached.tolist(), strict=True)
        coming = [now.after(tokens, steps, count, mask_id) for now, tokens, steps, count in drafts]
        size = draft.tokens.shape[2]
        ways = zip(left, standing, coming, strict=True)
        need = [blocks - (len(then.text_ids) - len(now.text_ids)) // size for blocks, now, then in ways]
        if min(need) <= 0:  # one ends there, and the batch becomes another
            return None
        if drafter.wants_logits:
            if any(then.new for then in coming):  # the target is just looking at that block
                return None
            for then in coming:
                drafter.observe(then, None)
        tokens, start, taken = sent(
            device,
            [token for then in coming for token in then.block],
            [len(then.text_ids) for then in coming],
            [then.taken for then in coming],
        )
        state = replace(request.state, tokens=tokens.view(-1, size), start=start, taken=taken)
        blocks = min(window(min(then.block.count(mask_id) for then in coming)), max(need))
        asked = replace(request, state=state, blocks=blocks, sequences=coming)
        return Made([*request.sequences], coming, drafter.propose(asked))
