"""The MLP of a layer behind its norm."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from simsd.models import fused
from simsd.models.norm import RMSNorm


class SwiGLU:
    """down(silu(gate(x)) * up(x)), gate and up in one product."""

    def __init__(self, gate_up: Callable[[Tensor], Tensor], down: Callable[[Tensor], Tensor]) -> None:
        self.gate_up = gate_up
        self.down = down

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(gated(self.gate_up(x)))


def gated(x: Tensor) -> Tensor:
    """silu(gate) * up for x `[..., 2 * I]`, the gate first: `[..., I]`."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


class MLP:
    """part(norm(x)), x `[M, hidden]` -> the same shape. part: a SwiGLU or a mixture of experts."""

    def __init__(self, norm: RMSNorm, part: Callable[[Tensor], Tensor]) -> None:
        self.norm = norm
        self.part = part
        self.native = fused.mlp(norm, part.gate_up, part.down) if isinstance(part, SwiGLU) else None

    def __call__(self, x: Tensor) -> Tensor:
        return self.part(self.norm(x)) if self.native is None else self.native(x)
