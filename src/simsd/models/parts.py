"""A checkpoint's weights as the parts of the transformer, read in the dtype and on the device they will run in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from simsd.models.config import ModelConfig, MoEConfig
from simsd.models.layer import Attention, Rows
from simsd.models.linear import Linear, own_kernels
from simsd.models.mlp import MLP, SwiGLU
from simsd.models.moe import Experts, MixtureOfExperts, PackedStack, Router, router_dtype
from simsd.models.norm import RMSNorm
from simsd.models.quantized import Int8Linear
from simsd.models.shard import WHOLE, Shard, count
from simsd.models.vocabulary import Embedding, SplitHead
from simsd.models.weights import Piece, WeightFiles

Shapes = dict[str, tuple[int, ...]]
Head = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Parts:
    """Reads parts by their names in the checkpoint, without `.weight`. There are never two copies of all weights.

    shard: which part of the split weights is read; by default all of them.
    int8: linear layers and experts get int8 weights; embedding, head, norms and routers stay as they are.
    """

    files: WeightFiles
    dtype: torch.dtype
    device: torch.device
    eps: float
    shard: Shard = WHOLE
    int8: bool = False

    def tensor(self, *names: str | Piece) -> Tensor:
        """Tensors stacked along their first dimension."""
        return self.files.read(names, self.dtype, self.device)

    def linear(self, *pieces: Piece) -> Linear | Int8Linear:
        """Several linear layers as one. They have a bias if the checkpoint stores one; that of a layer which is split
        by columns, whose outputs are summed, is rank 0's.
        """
        weight = self.tensor(*(Piece(f"{p.name}.weight", p.rows, p.columns) for p in pieces))
        return self.layer(weight, self._bias(pieces))

    def layer(self, weight: Tensor, bias: Tensor | None = None) -> Linear | Int8Linear:
        return Int8Linear(weight, bias) if self.int8 else Linear(weight, bias)

    def _bias(self, pieces: tuple[Piece, ...]) -> Tensor | None:
        stored = f"{pieces[0].name}.bias" in self.files.shapes
        if not stored or (pieces[0].columns is not None and self.shard.rank > 0):
            return None
        return self.tensor(*(Piece(f"{p.name}.bias", p.rows) for p in pieces))

    def norm(self, name: str) -> RMSNorm:
        return RMSNorm(self.tensor(f"{name}.weight"), self.eps)

    def swiglu(self, prefix: str) -> SwiGLU:
        """This rank's inner dimensions of a dense MLP."""
        own = self.shard.span(self.files.shapes[f"{prefix}.down_proj.weight"][1])
        gate_up = self.linear(*(Piece(f"{prefix}.{name}", rows=own) for name in ("gate_proj", "up_proj")))
        return SwiGLU(gate_up, self.linear(Piece(f"{prefix}.down_proj", columns=own)))

    def experts(self, prefix: str, total: int) -> Experts:
        """This rank's experts of `prefix.0` .. `prefix.{total-1}`: stacked, packed or not, or in int8 one by one."""
        own = self.shard.span(total)
        numbers, partial = range(total)[own], self.shard.size > 1
        inner = [[f"{prefix}.{e}.{name}.weight" for name in ("gate_proj", "up_proj")] for e in numbers]
        outer = [[f"{prefix}.{e}.down_proj.weight"] for e in numbers]
        if self.int8:
            gate_ups, downs = ([Int8Linear(self.tensor(*one)) for one in each] for each in (inner, outer))
            return Experts(gate_ups, downs, own.start, partial=partial)
        gate_up, down = (
            stacked_experts((self.tensor(*one) for one in each), len(each), self.device, self.dtype)
            for each in (inner, outer)
        )
        return Experts(gate_up, down, own.start, partial=partial)

    def mixture(self, prefix: str, moe: MoEConfig) -> MixtureOfExperts:
        """Router, this rank's experts and, where the checkpoint has one, its share of the shared expert."""
        wide = router_dtype(self.dtype)
        bias = f"{prefix}.gate.expert_bias"
        alone = moe.score_function == "sigmoid" and moe.num_experts_per_tok == 1  # its sigmoid stays its weight
        router = Router(
            Linear(self.files.read(f"{prefix}.gate.weight", wide, self.device)),
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

    def mlp(self, prefix: str, norm: str, config: ModelConfig, layer: int) -> Callable[[Tensor], Tensor]:
        """The MLP of a layer behind its norm: dense, or a mixture of experts where the configuration says so."""
        sparse = config.moe is not None and layer in config.moe.sparse_layers
        part = self.mixture(prefix, config.moe) if config.moe is not None and sparse else self.swiglu(prefix)
        return self.shard.summed(MLP(self.norm(norm), part))

    def attention(
        self,
        config: ModelConfig,
        norm: str,
        qkv: Linear | Int8Linear,
        head_norms: Sequence[Tensor],
        output: Linear | Int8Linear,
    ) -> Callable[[Tensor, Rows, int], Tensor]:
        """The attention of a layer behind its norm; head_norms: `[heads, D]`, of this rank's queries, then keys."""
        norms = RMSNorm(torch.cat(list(head_norms)), self.eps)
        return self.shard.summed(Attention(self.shard.config(config), self.norm(norm), qkv, norms, output))

    def embedding(self, name: str) -> Embedding:
        """The vectors of this rank's tokens."""
        first = self.shard.span(self.files.shapes[f"{name}.weight"][0]).start
        return Embedding(self._of_tokens(name), first, self.shard.ranks if self.shard.size > 1 else None)

    def head(self, embedding: Embedding, vocab_size: int, name: str = "lm_head", *, tied: bool) -> Head:
        """Logits, on each rank those of its own tokens, gathered on rank 0; a tied head has the embedding's rows. For a
        CPU they are packed a second time: this is a forward's largest product, and takes a third of the time so.
        """
        counts = [count(Shard(rank, self.shard.size).span(vocab_size)) for rank in range(self.shard.size)]
        weight = embedding.weight if tied else self._of_tokens(name)
        share = Linear(weight)
        return share if self.shard.size == 1 else SplitHead(share, counts, self.shard.ranks)

    def _of_tokens(self, name: str) -> Tensor:
        """The rows of this rank's tokens, filled up with zeros where another rank has more: shares of logits are
        gathered in one shape.
        """
        total = self.files.shapes[f"{name}.weight"][0]
        own, most = self.shard.span(total), count(Shard(0, self.shard.size).span(total))
        weight = self.tensor(Piece(f"{name}.weight", own))
        return weight if len(weight) == most else F.pad(weight, (0, 0, 0, most - len(weight)))


def stacked_experts(
    weights: Iterable[Tensor], count: int, device: torch.device, dtype: torch.dtype
) -> Tensor | PackedStack:
    """So many weights of one shape as one, packed where our own kernels take them. They are read one by one."""
    if (own := own_kernels(device.type, dtype)) is not None:
        return PackedStack.of(weights, count, own)
    stack: Tensor | None = None
    for index, weight in enumerate(weights):
        if stack is None:
            stack = weight.new_empty(count, *weight.shape)
        stack[index] = weight
    assert stack is not None
    return stack


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
