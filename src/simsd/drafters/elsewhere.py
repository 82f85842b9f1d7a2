"""A drafter on another device than the target: the one place where tensors cross."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from simsd.core.draft import Draft
from simsd.core.tensors import mapped
from simsd.drafters.base import Around, Drafter, DraftRequest, SequenceView, Window


class Elsewhere(Around):
    """Carries a round's request to the drafter's device, and its draft back: once each way.

    The target's logits of the last verification cross too, for a drafter that reads them.
    """

    def __init__(self, drafter: Drafter, device: torch.device) -> None:
        """device: the drafter's; the target's is where its requests are."""
        super().__init__(drafter)
        self.device = device

    def propose(self, request: DraftRequest) -> Draft:
        return moved(self.drafter.propose(moved(request, self.device)), request.state.tokens.device)

    def expect(self, reached: Callable[[], Tensor], left: Sequence[int], window: Window) -> None:
        self.drafter.expect(lambda: moved(reached(), self.device), left, window)

    def observe(self, sequence: SequenceView, logits: Tensor | None) -> None:
        self.drafter.observe(sequence, moved(logits, self.device))


def moved(value: Any, device: torch.device) -> Any:
    """A tensor, or a dataclass with all its tensors, on another device; anything else as it is."""
    return mapped(value, lambda tensor: tensor.to(device))
