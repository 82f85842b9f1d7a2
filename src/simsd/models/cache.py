"""The KV cache: one preallocated buffer, written in place, with scratch beyond the committed length."""

from __future__ import annotations

import torch
from torch import Tensor


class KVCache:
    """Keys and values of some sequences, in one buffer `[layers, 2, sequences, kv_heads, capacity, head_dim]`.

    It holds no lengths: the engine knows how much of each sequence is committed. What lies beyond is scratch; rolling
    back is doing nothing (method section 6). The buffer starts as zeros, never as whatever the memory held: a slot
    that the mask hides still enters the product with weight 0, and 0 times NaN would be NaN.
    """

    def __init__(
        self,
        layers: int,
        sequences: int,
        kv_heads: int,
        capacity: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self._hold(torch.zeros(layers, 2, sequences, kv_heads, capacity, head_dim, dtype=dtype, device=device))

    def _hold(self, buffer: Tensor) -> None:
        self.buffer = buffer
        self._rows: Tensor | None = None  # 0 .. sequences-1 as a column, made when it is first needed

    @classmethod
    def _over(cls, buffer: Tensor) -> KVCache:
        view = cls.__new__(cls)
        view._hold(buffer)
        return view

    @property
    def sequences(self) -> int:
        return self.buffer.shape[2]

    @property
    def capacity(self) -> int:
        """Slots (tokens) of each sequence."""
        return self.buffer.shape[4]

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer; of a slice, the bytes it covers."""
        return self.buffer.nbytes

    def slice(self, start: int, count: int) -> KVCache:
        """A view on `count` sequences from `start` on: no copy, writes go through. `grow` detaches older views."""
        return self._over(self.buffer.narrow(2, start, count))

    def grow(self, capacity: int) -> None:
        """Makes room for at least `capacity` slots a sequence; what is stored stays."""
        if capacity > self.capacity:
            self._enlarge(4, capacity)

    def grow_sequences(self, sequences: int) -> None:
        """Makes room for at least that many sequences; what is stored stays."""
        if sequences > self.sequences:
            self._enlarge(2, sequences)

    def _enlarge(self, dim: int, size: int) -> None:
        shape = list(self.buffer.shape)
        old, shape[dim] = shape[dim], size
        larger = self.buffer.new_zeros(shape)
        larger.narrow(dim, 0, old).copy_(self.buffer)
        self._hold(larger)

    def copy(self, src: int, dst: int, count: int) -> None:
        """The first `count` slots of sequence `src` become those of `dst`, in all layers."""
        self._part(dst, count).copy_(self._part(src, count))

    def swap(self, one: int, other: int, count: int) -> None:
        """Two sequences change places: their first `count` slots, in all layers."""
        mine, theirs = self._part(one, count), self._part(other, count)
        kept = mine.clone()
        mine.copy_(theirs)
        theirs.copy_(kept)

    def _part(self, sequence: int, count: int) -> Tensor:
        return self.buffer.select(2, sequence).narrow(3, 0, count)

    def clear(self, sequence: int, first: int = 0) -> None:
        """Zeros for a sequence from slot `first` on, as in a new cache."""
        self.buffer[:, :, sequence, :, first:].zero_()

    def views(self, start: int, count: int) -> list[tuple[Tensor, Tensor]]:
        """Each layer's keys and values of `count` slots from `start` on, as views `[sequences, kv_heads, count, D]`.

        All layers at once, because on a small model slicing costs as much as computing.
        """
        flat = self.buffer.narrow(4, start, count).flatten(0, 1).unbind(0)
        return list(zip(flat[::2], flat[1::2], strict=True))

    def write(self, layer: int, k: Tensor, v: Tensor, slots: int | Tensor) -> None:
        """Stores the rows' keys and values.

        Args:
            k, v: `[sequences, kv_heads, R, head_dim]`.
            slots: the first slot, the same for all sequences, or each row's slot as a LongTensor `[sequences, R]`.
        """
        keys, values = self.buffer[layer].unbind(0)
        if isinstance(slots, int):
            rows = k.shape[2]
            keys.narrow(2, slots, rows).copy_(k)
            values.narrow(2, slots, rows).copy_(v)
        else:
            if self._rows is None:
                self._rows = torch.arange(self.sequences, device=self.buffer.device)[:, None]
            # Index tensors around a slice put their own dimensions first: [sequences, R, kv_heads, head_dim].
            keys[self._rows, :, slots] = k.transpose(1, 2)
            values[self._rows, :, slots] = v.transpose(1, 2)

    def read(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of slots 0 .. length-1 as views `[sequences, kv_heads, length, head_dim]`."""
        keys, values = self.buffer[layer].unbind(0)
        return keys.narrow(2, 0, length), values.narrow(2, 0, length)
