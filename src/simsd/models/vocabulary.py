"""The two ends of the model, over its vocabulary: token vectors, and a head whose logits are computed in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from simsd.models.shard import Ranks


class Embedding:
    """Token vectors: ids `[...]` -> `[..., hidden_size]`.

    weight: `[rows, hidden_size]`, of the whole vocabulary; or, given `ranks`, of the tokens from `first` on, and zeros
    behind. Then the others' vectors are zeros here, and the ranks add up theirs: exactly, in any order.
    """

    def __init__(self, weight: Tensor, first: int = 0, ranks: Ranks | None = None) -> None:
        self.weight = weight
        self.first = first
        self.ranks = ranks

    def __call__(self, ids: Tensor) -> Tensor:
        if self.ranks is None:
            return F.embedding(ids, self.weight)
        place = ids - self.first
        near = place.clamp(0, self.weight.shape[0] - 1)
        return self.ranks.sum(F.embedding(near, self.weight).masked_fill_((place != near)[..., None], 0))


class SplitHead:
    """hidden `[..., hidden_size]` -> logits `[..., vocab_size]` on rank 0; only this rank's own on the others.

    share: this rank's part of the head, filled up to the size of the largest. counts: how many of each rank's are real.
    """

    def __init__(self, share: Callable[[Tensor], Tensor], counts: Sequence[int], ranks: Ranks) -> None:
        self.share = share
        self.counts = list(counts)
        self.ranks = ranks

    def __call__(self, hidden: Tensor) -> Tensor:
        own = self.share(hidden)
        shares = self.ranks.gather(own)
        if shares is None:
            return own
        return torch.cat([share[..., :count] for share, count in zip(shares, self.counts, strict=True)], -1)
