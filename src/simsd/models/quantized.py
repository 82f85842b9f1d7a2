"""A linear layer with int8 weights: a scale for every output channel, and inputs rounded to int8 row by row.

The products are sums of whole numbers, which have no rounding and no order: a row comes out the same to the bit
whatever rows stand beside it. So exact verification holds for a quantised model as it does for any other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from simsd.models.operators import works

LEVELS = 127  # a whole number of a weight or an input is from -127 to 127
_FEW_LEVELS = 63  # of an input on x86 without VNNI, where sums of two products have to fit into 16 bits
_TINY = 1e-30  # the least largest number of a row: zeros stay zeros
_CUDA_ROWS = 32  # filled up to; CUDA's product wants more than 16


class Int8Linear:
    """y = x W^T + b for x `[..., in]`, in x's dtype; W `[out, in]` is rounded when the layer is made.

    On an x86 CPU oneDNN multiplies packed weights. At hidden size 2048 and 4 to 64 rows that takes a third to a half
    of bfloat16's time; at 256, rounding the inputs costs more than the product saves. CUDA has a product of its own.
    Elsewhere weights are widened for each product, which only saves memory.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight: `[out, in]` in any dtype; it is not kept. bias: `[out]` or None."""
        top = weight.abs().amax(1, keepdim=True).float().clamp_(min=_TINY)
        whole = (weight * (LEVELS / top)).round_().to(torch.int8)
        self.bias = bias
        self.out_features = weight.shape[0]
        self.kernel = choose_kernel(weight)
        self.scale = top[:, 0] / (LEVELS * self.kernel.levels)
        self.weight = self.kernel.pack(whole)

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        top = rows.abs().amax(1, keepdim=True).float().clamp_(min=_TINY)
        whole = (rows * (self.kernel.levels / top)).round_()
        y = self.kernel.product(whole, self.weight, self.scale, self.kernel.levels).mul_(top)
        if self.bias is not None:
            y += self.bias
        return y.to(x.dtype).view(*x.shape[:-1], self.out_features)


@dataclass(frozen=True)
class Kernel:
    """A way to multiply whole numbers without rounding.

    product: `(rows [R, in] float, weight, scale [out], levels) -> [R, out]` float32; rows may be overwritten.
    levels: rows are from -levels to levels.
    pack: what it makes of an int8 weight `[out, in]`.
    """

    product: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    levels: int
    pack: Callable[[Tensor], Tensor]


def choose_kernel(weight: Tensor) -> Kernel:
    """The fastest one that is right for a weight `[out, in]`, on its device."""
    if weight.device.type == "cpu" and (levels := onednn_levels()):
        return Kernel(_onednn, levels, _pack_for_onednn)
    if weight.is_cuda and not any(size % 8 for size in weight.shape) and _cuda_works(weight.device):
        return Kernel(_cuda, LEVELS, _as_it_is)
    return Kernel(_widened, LEVELS, _as_it_is)


def _as_it_is(weight: Tensor) -> Tensor:
    return weight


def _pack_for_onednn(weight: Tensor) -> Tensor:
    return torch.ops.onednn.qlinear_prepack(weight, None)


def _onednn(rows: Tensor, weight: Tensor, scale: Tensor, levels: int) -> Tensor:
    """Inputs are unsigned there, with a zero of their own."""
    zero = levels + 1
    shifted, zeros = rows.add_(zero).to(torch.uint8), torch.zeros(1, dtype=torch.long)
    return torch.ops.onednn.qlinear_pointwise.default(
        shifted, 1.0, zero, weight, scale, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )


def _cuda(rows: Tensor, weight: Tensor, scale: Tensor, levels: int) -> Tensor:
    count = rows.shape[0]
    filled = F.pad(rows, (0, 0, 0, max(_CUDA_ROWS - count, 0))).to(torch.int8)
    return torch.ops.aten._int_mm.default(filled, weight.T)[:count] * scale


def _widened(rows: Tensor, weight: Tensor, scale: Tensor, levels: int) -> Tensor:
    """In float64 the sums of whole numbers have no rounding either."""
    return F.linear(rows.double(), weight.double()).float() * scale


@functools.cache
def onednn_levels() -> int:
    """Levels at which oneDNN's product is right on this CPU; 0 where it is not, or not fast, or not there."""
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return 0
    return next((levels for levels in (LEVELS, _FEW_LEVELS) if _onednn_is_right(levels)), 0)


def _onednn_is_right(levels: int) -> bool:
    # the largest numbers may overflow inside
    rows = torch.tensor([[levels], [-levels]]).repeat(1, 64).float()
    weight = torch.tensor([[LEVELS], [-LEVELS]], dtype=torch.int8).repeat(8, 64)
    expected = rows @ weight.T.float()
    return works(lambda: torch.equal(_onednn(rows, _pack_for_onednn(weight), torch.ones(16), levels), expected))


@functools.cache
def _cuda_works(device: torch.device) -> bool:
    ones = torch.ones(16, 16, dtype=torch.int8, device=device)
    return works(lambda: bool((_cuda(ones.float(), ones, ones[0].float(), LEVELS) == 16).all()))
