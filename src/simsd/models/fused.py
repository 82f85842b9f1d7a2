"""The halves of a layer as one native call each, where all of their products are for our own kernels."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from simsd.models.config import ModelConfig
from simsd.models.linear import Linear
from simsd.models.norm import RMSNorm
from simsd.native.layer import MOST_HEAD, NativeAttention, NativeMlp, PackedWeight
from simsd.native.library import Kernels

Part = Callable[[Tensor], Tensor]


def attention(
    config: ModelConfig, norm: RMSNorm, qkv: Part, head_norms: RMSNorm, output: Part
) -> NativeAttention | None:
    """A layer's attention, of the parts that `layer.Attention` takes; None if it cannot be one call."""
    if not (isinstance(qkv, Linear) and isinstance(output, Linear)) or config.head_dim > MOST_HEAD:
        return None
    if (own := _kernels(qkv, output)) is None:
        return None
    return NativeAttention(
        own.attention[qkv.dtype],
        (norm.scaled, norm.eps),
        (head_norms.scaled, head_norms.eps),
        _packed(qkv),
        _packed(output),
        config.num_attention_heads,
        config.num_key_value_heads,
    )


def mlp(norm: RMSNorm, gate_up: Part, down: Part) -> NativeMlp | None:
    """A layer's dense MLP behind its norm; None if it cannot be one call."""
    if not (isinstance(gate_up, Linear) and isinstance(down, Linear)):
        return None
    if (own := _kernels(gate_up, down)) is None:
        return None
    return NativeMlp(own.mlp[down.dtype], (norm.scaled, norm.eps), _packed(gate_up), _packed(down))


def _kernels(*layers: Linear) -> Kernels | None:
    """Those that all of these products are for."""
    owners = {None if layer.packing is None else layer.packing.own for layer in layers}
    return owners.pop() if len(owners) == 1 else None


def _packed(layer: Linear) -> PackedWeight:
    return PackedWeight(layer.weight, layer.bias, layer.outputs, layer.inputs)
