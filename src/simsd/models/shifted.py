"""Models whose logits are shifted by one: row i predicts the token after its own (Dream, Fast-dLLM v2).

The engine reads the token of a position at that position. So a row here returns the hidden state of its
*predecessor*: the row at the position before it, in the state that it sees. In every layout there is exactly one:

- in a copy of the block, the copy's row before it;
- under the paired layout, D_{i-1} or M_{i-1}: the mask shows M_i only one of the two, the right one for its step;
- for a block's first position, the last row of the block before: of the finished copy that this copy sees, or of a
  pending block, or a row that was computed in an earlier forward. For the last case hidden states are stored beside
  the keys and values, slot by slot; committing and rolling back are the same for both.

So verification is as exact as without the shift, and the engine needs to know nothing of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from simsd.models.protocol import Cache, Model


class ShiftedCache:
    """A model's cache, and the hidden state of every slot `[sequences, capacity, hidden_size]`."""

    def __init__(self, inner: Cache, hidden: Tensor) -> None:
        self.inner = inner
        self.hidden = hidden

    @property
    def sequences(self) -> int:
        return self.inner.sequences

    @property
    def capacity(self) -> int:
        return self.inner.capacity

    def slice(self, start: int, count: int) -> ShiftedCache:
        return ShiftedCache(self.inner.slice(start, count), self.hidden.narrow(0, start, count))

    def grow(self, capacity: int) -> None:
        self.inner.grow(capacity)
        self._follow()

    def grow_sequences(self, sequences: int) -> None:
        self.inner.grow_sequences(sequences)
        self._follow()

    def _follow(self) -> None:
        """As many places and slots as the model's cache has now; what is stored stays."""
        sequences, capacity, size = self.hidden.shape
        if (self.sequences, self.capacity) != (sequences, capacity):
            larger = self.hidden.new_zeros(self.sequences, self.capacity, size)
            larger[:sequences, :capacity] = self.hidden
            self.hidden = larger

    def copy(self, src: int, dst: int, count: int) -> None:
        self.inner.copy(src, dst, count)
        self.hidden[dst, :count] = self.hidden[src, :count]

    def swap(self, one: int, other: int, count: int) -> None:
        self.inner.swap(one, other, count)
        self.hidden[[one, other], :count] = self.hidden[[other, one], :count]

    def clear(self, sequence: int, first: int = 0) -> None:
        self.inner.clear(sequence, first)
        self.hidden[sequence, first:].zero_()


class Shifted:
    """A model with shifted logits, as one whose logits stand where their tokens do.

    Positions must be slots for what is stored, as the engine has them. The ablation without position copy numbers
    rows otherwise, and means nothing here.
    """

    def __init__(self, model: Model, hidden_size: int) -> None:
        self.model = model
        self.hidden_size = hidden_size

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def device(self) -> torch.device:
        return self.model.device

    def make_cache(self, sequences: int, capacity: int) -> ShiftedCache:
        hidden = torch.zeros(sequences, capacity, self.hidden_size, dtype=self.dtype, device=self.device)
        return ShiftedCache(self.model.make_cache(sequences, capacity), hidden)

    def forward(
        self, ids: Tensor, positions: Tensor, bias: Tensor | None, cache: ShiftedCache, slots: int | Tensor, length: int
    ) -> Tensor:
        """As `Transformer.forward`, but each row's result is its predecessor's hidden state `[N, R, hidden_size]`."""
        hidden = self.model.forward(ids, positions, bias, cache.inner, slots, length)
        batch, rows = ids.shape
        if isinstance(slots, int):
            slots = torch.arange(slots, slots + rows, device=ids.device).expand(batch, rows)
        sequence = torch.arange(batch, device=ids.device)[:, None]
        cache.hidden[sequence, slots] = hidden
        return cache.hidden[sequence, predecessors(positions, bias, slots, length).clamp(max=cache.capacity - 1)]

    def head(self, hidden: Tensor) -> Tensor:
        return self.model.head(hidden)


def predecessors(positions: Tensor, bias: Tensor | None, slots: Tensor, length: int) -> Tensor:
    """The slot `[N, R]` of each row's predecessor: of a row beside it, else the stored slot of that position.

    positions, slots `[N, R]`; bias as in `Transformer.forward`. Fill-up rows, written at `length` or behind, are
    nobody's predecessor. The very first position has none, and gets itself.
    """
    wanted = (positions - 1).clamp(min=0)
    beside = (positions[:, None, :] == wanted[:, :, None]) & (slots < length)[:, None, :]
    if bias is not None:
        columns = slots.clamp(max=length - 1)[:, None].expand(beside.shape)
        beside &= bias[:, 0].gather(2, columns) == 0
    found = slots.gather(1, beside.long().argmax(-1))
    return torch.where(beside.any(-1), found, wanted)
