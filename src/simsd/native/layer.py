"""The halves of a layer as one call each, and what all calls of a forward have in common."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import Structure, c_double, c_int, c_long, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

MOST_HEAD = 512  # dimensions of a head


class CProduct(Structure):
    _fields_ = [("weight", c_void_p), ("bias", c_void_p), ("outputs", c_long), ("inputs", c_long)]


class CAttention(Structure):
    _fields_ = [
        ("norm", c_void_p),
        ("head_norms", c_void_p),
        ("qkv", CProduct),
        ("output", CProduct),
        ("eps", c_double),
        ("head_eps", c_double),
        ("heads", c_long),
        ("kv_heads", c_long),
        ("size", c_long),
    ]


class CMlp(Structure):
    _fields_ = [("norm", c_void_p), ("gate_up", CProduct), ("down", CProduct), ("eps", c_double)]


class CRows(Structure):
    _fields_ = [
        ("turns", c_void_p),
        ("slots", c_void_p),
        ("bias", c_void_p),
        ("slot", c_long),
        ("sequences", c_long),
        ("rows", c_long),
        ("length", c_long),
        ("bias_sequence", c_long),
        ("cache_sequence", c_long),
        ("cache_head", c_long),
        ("threads", c_int),
    ]


class NativeRows:
    """The rows of a forward, for all of its layers.

    Args:
        turns: `[N*R, 2, D]`, cosines and signed sines of their positions.
        slots: the first slot of all sequences, or `[N, R]`.
        bias: `[N or 1, 1, R, length]` or None.
        cache: `[layers, 2, N, kv_heads, capacity, D]`; the slots of a head lie side by side.
        length: slots that are attended to.

    Raises: ValueError where a kernel would read or write beside them.
    """

    def __init__(self, turns: Tensor, slots: int | Tensor, bias: Tensor | None, cache: Tensor, length: int) -> None:
        layer, kind, sequence, head, _, _ = cache.stride()
        size, sequences = cache.element_size(), cache.shape[2]
        rows = turns.shape[0] // sequences
        _check(slots, bias, cache, rows, length)
        turns = turns.contiguous()
        bias = None if bias is None else bias.contiguous()
        places = None if isinstance(slots, int) else slots.contiguous()
        self._held = turns, bias, places, cache  # as long as their addresses are
        self._keys, self._layer, self._values = cache.data_ptr(), layer * size, kind * size
        self._rows = CRows(
            turns=turns.data_ptr(),
            slots=None if places is None else places.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            slot=slots if isinstance(slots, int) else 0,
            sequences=sequences,
            rows=rows,
            length=length,
            bias_sequence=0 if bias is None or bias.shape[0] == 1 else rows * length,
            cache_sequence=sequence,
            cache_head=head,
            threads=torch.get_num_threads(),
        )
        self.address = ctypes.addressof(self._rows)

    def keys(self, layer: int) -> int:
        """Where those of a layer begin."""
        return self._keys + layer * self._layer

    def values(self, layer: int) -> int:
        return self.keys(layer) + self._values


def _check(slots: int | Tensor, bias: Tensor | None, cache: Tensor, rows: int, length: int) -> None:
    sequences, capacity = cache.shape[2], cache.shape[4]
    if not 0 < length <= capacity or (isinstance(slots, int) and not 0 <= slots <= capacity - rows):
        raise ValueError(f"{rows} rows at slot {slots}, {length} seen, do not fit into {capacity} slots")
    if not isinstance(slots, int):
        if slots.shape != (sequences, rows) or slots.dtype != torch.long:
            raise ValueError(f"slots is {list(slots.shape)} {slots.dtype}, expected [{sequences}, {rows}] torch.int64")
        low, high = slots.aminmax()
        if low < 0 or high >= capacity:
            raise ValueError(f"slots are {int(low)} .. {int(high)}, and there are {capacity}")
    if bias is None:
        return
    if bias.dtype != cache.dtype or bias.shape[0] not in (1, sequences) or bias.shape[1:] != (1, rows, length):
        raise ValueError(
            f"bias is {list(bias.shape)} {bias.dtype}, expected [{sequences} or 1, 1, {rows}, {length}] {cache.dtype}"
        )


@dataclass(frozen=True)
class PackedWeight:
    """A packed weight and what it is of: `[outputs, inputs]`."""

    weight: Tensor
    bias: Tensor | None
    outputs: int
    inputs: int

    def told(self) -> CProduct:
        return CProduct(
            self.weight.data_ptr(), None if self.bias is None else self.bias.data_ptr(), self.outputs, self.inputs
        )


class NativeAttention:
    """output(attention(norm(x))); the rows' keys and values are stored on the way."""

    def __init__(
        self,
        function: Callable[..., int],
        norm: tuple[Tensor, float],
        head_norms: tuple[Tensor, float],
        qkv: PackedWeight,
        output: PackedWeight,
        heads: int,
        kv_heads: int,
    ) -> None:
        """norm, head_norms: float32 weights `[hidden]` and `[heads + kv_heads, D]`, times the square root of their last
        dimension, and their eps."""
        self._function = function
        self._held = norm, head_norms, qkv, output
        self._weights = CAttention(
            norm=norm[0].data_ptr(),
            head_norms=head_norms[0].data_ptr(),
            qkv=qkv.told(),
            output=output.told(),
            eps=norm[1],
            head_eps=head_norms[1],
            heads=heads,
            kv_heads=kv_heads,
            size=head_norms[0].shape[1],
        )
        self._address = ctypes.addressof(self._weights)

    def __call__(self, x: Tensor, rows: NativeRows, layer: int) -> Tensor:
        """x `[N*R, hidden]`, contiguous -> the same shape."""
        y = torch.empty_like(x)
        done(
            self._function(
                self._address, rows.address, x.data_ptr(), rows.keys(layer), rows.values(layer), y.data_ptr()
            )
        )
        return y


class NativeMlp:
    """down(silu(gate) * up) of norm(x)."""

    def __init__(
        self, function: Callable[..., int], norm: tuple[Tensor, float], gate_up: PackedWeight, down: PackedWeight
    ) -> None:
        self._function = function
        self._held = norm, gate_up, down
        self._weights = CMlp(norm=norm[0].data_ptr(), gate_up=gate_up.told(), down=down.told(), eps=norm[1])
        self._address = ctypes.addressof(self._weights)

    def __call__(self, x: Tensor) -> Tensor:
        """x `[M, hidden]`, contiguous -> the same shape."""
        y = torch.empty_like(x)
        done(self._function(self._address, x.data_ptr(), y.data_ptr(), x.shape[0], torch.get_num_threads()))
        return y


def done(failed: int) -> None:
    """Raises: MemoryError if a kernel says that it has failed."""
    if failed:
        raise MemoryError("there was no memory for what a product needs besides its result")
