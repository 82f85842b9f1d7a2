"""A checkpoint's weights as the parts of the transformer, read in the dtype and on the device they will run in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from simsd.models.config import ModelConfig, MoEConfig
from simsd.models.linear import Linear
from simsd.models.moe import Experts, MixtureOfExperts, Router, router_dtype
from simsd.models.norm import RMSNorm
from simsd.models.quantized import Int8Linear
from simsd.models.transformer import SwiGLU
from simsd.models.weights import WeightFiles

Shapes = dict[str, tuple[int, ...]]

# A tied head shares the embedding. Packing it makes a second copy, worth it only while that is small.
MAX_TIED_COPY = 256 << 20


@dataclass(frozen=True)
class Parts:
    """Reads parts by their names in the checkpoint, without `.weight`. There are never two copies of all weights.

    int8: linear layers and experts get int8 weights; embedding, head, norms and routers stay as they are.
    """

    files: WeightFiles
    dtype: torch.dtype
    device: torch.device
    eps: float
    int8: bool = False

    def tensor(self, *names: str) -> Tensor:
        """Tensors stacked along their first dimension."""
        return self.files.read(names, self.dtype, self.device)

    def linear(self, *names: str) -> Linear | Int8Linear:
        """Several linear layers as one. They have a bias if the checkpoint stores one."""
        stored = f"{names[0]}.bias" in self.files.shapes
        bias = self.tensor(*(f"{name}.bias" for name in names)) if stored else None
        return self.layer(self.tensor(*(f"{name}.weight" for name in names)), bias)

    def layer(self, weight: Tensor, bias: Tensor | None = None) -> Linear | Int8Linear:
        return Int8Linear(weight, bias) if self.int8 else Linear(weight, bias)

    def norm(self, name: str) -> RMSNorm:
        return RMSNorm(self.tensor(f"{name}.weight"), self.eps)

    def swiglu(self, prefix: str) -> SwiGLU:
        return SwiGLU(self.linear(f"{prefix}.gate_proj", f"{prefix}.up_proj"), self.linear(f"{prefix}.down_proj"))

    def experts(self, prefix: str, count: int) -> Experts:
        """The experts `prefix.0` .. `prefix.{count-1}`: stacked, or in int8 one by one."""
        if self.int8:
            each = [self.swiglu(f"{prefix}.{e}") for e in range(count)]
            return Experts([expert.gate_up for expert in each], [expert.down for expert in each])
        inner = [f"{prefix}.{e}.{name}.weight" for e in range(count) for name in ("gate_proj", "up_proj")]
        outer = [f"{prefix}.{e}.down_proj.weight" for e in range(count)]
        return Experts(self.tensor(*inner).unflatten(0, (count, -1)), self.tensor(*outer).unflatten(0, (count, -1)))

    def mixture(self, prefix: str, moe: MoEConfig) -> MixtureOfExperts:
        """Router, experts and, where the checkpoint has one, the shared expert."""
        wide = router_dtype(self.dtype)
        bias = f"{prefix}.gate.expert_bias"
        alone = moe.score_function == "sigmoid" and moe.num_experts_per_tok == 1  # its sigmoid stays its weight
        router = Router(
            self.files.read(f"{prefix}.gate.weight", wide, self.device),
            top_k=moe.num_experts_per_tok,
            score=moe.score_function,
            renormalise=moe.norm_topk_prob and not alone,
            bias=self.files.read(bias, wide, self.device) if bias in self.files.shapes else None,
            groups=moe.n_group,
            kept_groups=moe.topk_group,
            scale=moe.routed_scaling_factor,
        )
        shared = self.swiglu(f"{prefix}.shared_experts") if moe.num_shared_experts else None
        return MixtureOfExperts(router, self.experts(f"{prefix}.experts", moe.num_experts), shared)

    def mlp(self, prefix: str, config: ModelConfig, layer: int) -> SwiGLU | MixtureOfExperts:
        """The MLP of a layer: dense, or a mixture of experts where the configuration says so."""
        if config.moe is not None and layer in config.moe.sparse_layers:
            return self.mixture(prefix, config.moe)
        return self.swiglu(prefix)

    def head(self, embedding: Tensor, name: str = "lm_head", *, tied: bool) -> Linear:
        if tied:
            return Linear(embedding, pack=embedding.nbytes <= MAX_TIED_COPY)
        return Linear(self.tensor(f"{name}.weight"))


def swiglu_shapes(prefix: str, hidden: int, inner: int) -> Shapes:
    return {
        f"{prefix}.gate_proj.weight": (inner, hidden),
        f"{prefix}.up_proj.weight": (inner, hidden),
        f"{prefix}.down_proj.weight": (hidden, inner),
    }


def mlp_shapes(prefix: str, config: ModelConfig, layer: int) -> Shapes:
    """The weights of a layer's MLP. A sigmoid router has a bias for each expert, a softmax router none."""
    moe, hidden = config.moe, config.hidden_size
    if moe is None or layer not in moe.sparse_layers:
        return swiglu_shapes(prefix, hidden, config.intermediate_size)
    shapes: Shapes = {f"{prefix}.gate.weight": (moe.num_experts, hidden)}
    if moe.score_function == "sigmoid":
        shapes[f"{prefix}.gate.expert_bias"] = (moe.num_experts,)
    for expert in range(moe.num_experts):
        shapes |= swiglu_shapes(f"{prefix}.experts.{expert}", hidden, moe.moe_intermediate_size)
    if moe.num_shared_experts:
        shapes |= swiglu_shapes(f"{prefix}.shared_experts", hidden, moe.moe_intermediate_size * moe.num_shared_experts)
    return shapes


def with_head(shapes: Mapping[str, tuple[int, ...]], config: ModelConfig) -> tuple[Shapes, Shapes]:
    """The weights a checkpoint must hold and those it may hold: a tied head may be stored all the same."""
    head: Shapes = {"lm_head.weight": (config.vocab_size, config.hidden_size)}
    return (dict(shapes), head) if config.tie_word_embeddings else (dict(shapes) | head, {})
