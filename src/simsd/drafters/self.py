"""Drafts without a second model: the target's own logits from its last verification (method section 3)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from simsd.core.draft import Draft, empty_draft
from simsd.core.tensors import sent
from simsd.drafters.base import DraftRequest, NoMemory, SequenceView, propose_with, side_by_side


class SelfDrafter(NoMemory):
    """Reads the newest target logits of the unfinished block as guesses for its next steps. It knows nothing of a
    block that has just begun, and then drafts nothing."""

    wants_logits = True
    most_blocks = 1

    def observe(self, sequence: SequenceView, logits: Tensor | None) -> None:
        sequence.memory["self_logits"] = logits

    def propose(self, request: DraftRequest) -> Draft:
        seen = [s.memory.get("self_logits") for s in request.sequences]
        logits = side_by_side(seen)
        if logits is None:
            return empty_draft(request.state, request.blocks)
        logits[..., request.state.mask_id].fill_(-torch.inf)
        (known,) = sent(logits.device, [one is not None for one in seen])
        return propose_with(replace(request, blocks=1), lambda *_: logits, 1, known > 0)
