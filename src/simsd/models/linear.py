"""One linear layer for inference: weights packed ahead where there is a product for that, F.linear elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from simsd.models.operators import works
from simsd.native.library import Kernels, kernels

DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Packing:
    """A product with a weight in an order of its own.

    pack: what it makes of a weight `[out, in]`.
    product: `(x [..., in], packed, bias or None, out) -> [..., out]`.
    numbers: how many a packed weight `[out, in]` holds.
    own: for our own kernels.
    """

    pack: Callable[[Tensor], Tensor]
    product: Callable[[Tensor, Tensor, Tensor | None, int], Tensor]
    numbers: Callable[[int, int], int]
    own: Kernels | None = None


class Linear:
    """y = x W^T + b for x `[..., in]`, W `[out, in]`, b `[out]` or None.

    On a CPU in float32 and bfloat16 the weight is packed once, and the plain one is dropped: for our own kernel where
    it can be compiled, else for oneDNN. The sums run in another order than F.linear's, so results agree to rounding.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.outputs, self.inputs = weight.shape
        if bias is not None and (bias.shape != (self.outputs,) or bias.dtype != weight.dtype):
            raise ValueError(f"the bias is {list(bias.shape)} {bias.dtype}, expected [{self.outputs}] {weight.dtype}")
        self.bias = None if bias is None else bias.contiguous()
        self.packing = packing(weight.device.type, weight.dtype) if weight.numel() else None
        self.dtype = weight.dtype
        self.weight = weight if self.packing is None else self.packing.pack(weight)

    def __call__(self, x: Tensor) -> Tensor:
        if self.packing is None:
            return F.linear(x, self.weight, self.bias)
        if x.shape[-1] != self.inputs or x.dtype != self.dtype:
            raise RuntimeError(f"the layer takes [..., {self.inputs}] {self.dtype}, not {list(x.shape)} {x.dtype}")
        return self.packing.product(x, self.weight, self.bias, self.outputs)


def packing(device_type: str, dtype: torch.dtype) -> Packing | None:
    """The fastest way to pack weights on this device and in this dtype; None if plain ones are best."""
    if device_type != "cpu" or dtype not in DTYPES:
        return None
    if (own := kernels()) is not None:
        return Packing(own.pack, own.product, functools.partial(own.packed_size, dtype=dtype), own)
    return Packing(_pack_for_onednn, _onednn, _onednn_numbers) if _onednn_works(dtype) else None


def own_kernels(device_type: str, dtype: torch.dtype) -> Kernels | None:
    """Our own kernels, where they are the fastest on this device and in this dtype."""
    found = packing(device_type, dtype)
    return None if found is None else found.own


def kernels_of(device_type: str, dtype: torch.dtype) -> str:
    """Whose products a dense model's layers are on this device and in this dtype, for a report."""
    found = packing(device_type, dtype)
    if found is None:
        return "PyTorch"
    return "oneDNN" if found.own is None else f"simsd ({found.own.vectors[dtype]})"


def _pack_for_onednn(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight)


def _onednn(x: Tensor, packed: Tensor, bias: Tensor | None, outputs: int) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, "none", [], "")


def _onednn_numbers(outputs: int, inputs: int) -> int:
    """It fills up to a multiple of 64 outputs."""
    return -(-outputs // 64) * 64 * inputs


@functools.cache
def _onednn_works(dtype: torch.dtype) -> bool:
    """Whether oneDNN's packed product is there in this build of PyTorch, and right in this dtype."""

    def check() -> bool:
        packed = _pack_for_onednn(torch.ones(16, 16, dtype=dtype))
        return bool((_onednn(torch.ones(2, 16, dtype=dtype), packed, None, 16) == 16).all())

    return works(check)
