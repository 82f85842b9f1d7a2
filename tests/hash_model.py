"""A stand-in for a transformer whose rows are hashes of all that they see, layer by layer.

Whatever changes in the ids, positions or rows that a row sees, directly or through other rows, changes its logits
beyond recognition. Equal logits therefore mean an equal view, at every depth, and no tolerance is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from simsd.core.layout import block_causal
from simsd.core.sampling import uniform


def mixed(x: Tensor) -> Tensor:
    """A 64-bit hash (the finaliser of murmur3)."""
    for bits, factor in ((33, -0xAE502812AA7333), (33, -0x3B314601E57A13AD)):
        x = (x ^ ((x >> bits) & ((1 << (64 - bits)) - 1))) * factor
    return x ^ ((x >> 33) & ((1 << 31) - 1))


class HashCache:
    """What each layer leaves behind of every row: [layers, sequences, capacity] of int64."""

    def __init__(self, layers: int, sequences: int, capacity: int) -> None:
        self.values = torch.zeros(layers, sequences, capacity, dtype=torch.long)

    @property
    def sequences(self) -> int:
        return self.values.shape[1]

    @property
    def capacity(self) -> int:
        return self.values.shape[2]

    def grow(self, capacity: int) -> None:
        self.values = torch.nn.functional.pad(self.values, (0, capacity - self.capacity))

    def grow_sequences(self, sequences: int) -> None:
        self.values = torch.nn.functional.pad(self.values, (0, 0, 0, sequences - self.sequences))

    def slice(self, first: int, count: int) -> HashCache:
        part = object.__new__(HashCache)
        part.values = self.values[:, first : first + count]  # a view: writes reach the whole cache
        return part

    def clear(self, sequence: int, first: int = 0) -> None:
        self.values[:, sequence, first:] = 0

    def copy(self, src: int, dst: int, count: int) -> None:
        self.values[:, dst, :count] = self.values[:, src, :count]

    def swap(self, one: int, other: int, count: int) -> None:
        self.values[:, [one, other], :count] = self.values[:, [other, one], :count]


class HashModel:
    """Fulfils the engine's `Model` protocol. A row's own id and position enter its hash, as does each visible row's.

    sharpness: the spread of the logits; certain: the share of views with one token far ahead of all others.
    """

    dtype = torch.float64
    device = torch.device("cpu")

    def __init__(self, vocab: int, layers: int = 2, seed: int = 0, sharpness: float = 1.0, certain: float = 0.5):
        self.vocab = vocab
        self.layers = layers
        self.seed = seed
        self.sharpness = sharpness
        self.certain = certain

    def make_cache(self, sequences: int, capacity: int) -> HashCache:
        return HashCache(self.layers, sequences, capacity)

    def forward(
        self, ids: Tensor, positions: Tensor, bias: Tensor | None, cache: HashCache, slots: int | Tensor, length: int
    ) -> Tensor:
        batch, rows = ids.shape
        if isinstance(slots, int):
            slots = (slots + torch.arange(rows)).expand(batch, -1)
        seen = torch.ones(batch, rows, length) if bias is None else (bias[:, 0] == 0)
        hidden = mixed(ids * 1_000_003 + self.seed)
        for layer in range(self.layers):
            # like a key with its rotary embedding: the row's state together with its position
            cache.values[layer].scatter_(1, slots, mixed(hidden + mixed(positions + 17)))
            keys = torch.where(seen.bool(), cache.values[layer][:, None, :length], 0)
            hidden = mixed(mixed(hidden + layer) + mixed(positions) * 3 + keys.sum(-1))
        return hidden[..., None]

    def head(self, hidden: Tensor) -> Tensor:
        """Logits float64 [..., V]: sharp in some views, flat in others."""
        noise = uniform(mixed(hidden + torch.arange(1, self.vocab + 1) * 7_919), torch.float64)
        logits = self.sharpness * 4 * (noise - 0.5)
        sure = uniform(mixed(hidden ^ 0x5DEECE66D), torch.float64) < self.certain
        return torch.where(sure & (noise == noise.amax(-1, keepdim=True)), logits + 8, logits)

    def plain_logits(self, text: list[int], block_length: int, mask_id: int) -> Tensor:
        """Logits [T, V] of a whole text without any cache: block-causal, MASK never to be drawn."""
        ids = torch.tensor([text])
        layout = block_causal(ids, torch.tensor([0]), block_length)
        bias = torch.zeros(layout.mask.shape, dtype=self.dtype).masked_fill(~layout.mask, -torch.inf)[:, None]
        logits = self.head(self.forward(ids, layout.positions, bias, self.make_cache(1, len(text)), 0, len(text)))
        logits[..., mask_id] = -torch.inf
        return logits[0]
