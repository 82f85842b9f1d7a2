"""Drafts from the text itself: what followed the last tokens when they came before (method section 3)."""

from __future__ import annotations

import torch
from torch import Tensor

from simsd.core.draft import Draft
from simsd.drafters.base import DraftRequest, NoMemory
from simsd.drafters.fixed import Guess, fixed_draft


class LookupDrafter(NoMemory):
    """Prompt lookup: the continuation of the latest earlier occurrence of the text's last n-gram, left to right."""

    def __init__(self, longest: int = 3) -> None:
        """longest: n-grams of this many tokens are tried first, then shorter ones."""
        self.longest = longest

    def propose(self, request: DraftRequest) -> Draft:
        mask_id = request.state.mask_id
        width = request.blocks * request.state.tokens.shape[1]
        guesses = [self._guess(list(s.text_ids), list(s.block), mask_id, width) for s in request.sequences]
        return fixed_draft(request, guesses)

    def _guess(self, text: list[int], block: list[int], mask_id: int, width: int) -> Guess:
        first = block.index(mask_id)  # what stands before the first gap goes on the text
        known = text + block[:first]
        at = last_occurrence(torch.tensor(known), self.longest)
        if at is None:
            return (), ()
        # past the end of the text the continuation repeats itself
        period = len(known) - at
        follow = [known[at + i % period] for i in range(width - first)]
        return block[:first] + follow, list(range(width))


def last_occurrence(text: Tensor, longest: int) -> int | None:
    """Where the text goes on after the latest earlier occurrence of its last n-gram, n from `longest` down to 1."""
    for n in range(min(longest, len(text) - 1), 0, -1):
        windows = text[:-1].unfold(0, n, 1)
        hits = (windows == text[-n:]).all(-1).nonzero()
        if len(hits):
            return int(hits[-1]) + n
    return None
