"""Root-mean-square norm, by whichever operators are fastest on the device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from simsd.models.linear import own_kernels


class RMSNorm:
    """w * x / sqrt(mean(x^2) + eps) over the last dimension D, computed in float32 at least.

    weight: `[D]`, or `[heads, D]` to norm each head of x `[..., heads, D]` with a weight of its own. scaled: it times
    sqrt(D), in float32 at least.

    CUDA has a fused kernel, and so have we on a CPU, where it could be compiled. Without it the built-in function is a
    chain of eight operators there, which costs more than a small model's arithmetic; with |x| the Euclidean norm, the
    same value is w sqrt(D) x / hypot(|x|, sqrt(D eps)).
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps
        self.size = weight.shape[-1]
        self.wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
        self.scaled = weight.to(self.wide) * self.size**0.5
        self.native = own_kernels(weight.device.type, weight.dtype) if weight.dim() == 1 else None
        self._floor = torch.tensor((self.size * eps) ** 0.5, dtype=self.wide, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            if self.weight.dim() == 1:
                return F.rms_norm(x, (self.size,), self.weight, self.eps)
            return F.rms_norm(x, (self.size,), None, self.eps).mul_(self.weight)
        if self.native is not None and x.dtype == self.weight.dtype and x.shape[-1] == self.size:
            return self.native.norm(x, self.scaled, self.eps)
        wide = x.to(self.wide)
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).hypot_(self._floor)
        return (wide / length).mul_(self.scaled).to(x.dtype)
