"""The Qwen3-shaped transformer of block-diffusion checkpoints, as inference code over a KV cache (method section 1).

No autograd and no modules: a forward is a loop over layers that hold fused weights. The caller sets
`torch.inference_mode()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from simsd.models.attention import attend, fold_bias
from simsd.models.cache import KVCache
from simsd.models.config import ModelConfig
from simsd.models.norm import RMSNorm
from simsd.models.vocabulary import Embedding


@dataclass(frozen=True)
class Layer:
    """One layer's weights, fused.

    qkv: hidden -> (heads + 2 * kv_heads) * head_dim, query heads first, then keys, then values.
    qk_norm: the two head norms side by side, weight `[heads + kv_heads, head_dim]`.
    output, mlp: hidden `[M, H]` -> `[M, H]`; dense or mixture of experts, whole or summed over ranks, the layer does
        not care.
    """

    input_norm: RMSNorm
    qkv: Callable[[Tensor], Tensor]
    qk_norm: RMSNorm
    output: Callable[[Tensor], Tensor]
    post_norm: RMSNorm
    mlp: Callable[[Tensor], Tensor]


class SwiGLU:
    """down(silu(gate(x)) * up(x)), gate and up in one product."""

    def __init__(self, gate_up: Callable[[Tensor], Tensor], down: Callable[[Tensor], Tensor]) -> None:
        self.gate_up = gate_up
        self.down = down

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate).mul_(up))


class Transformer:
    """`(ids, positions, bias, cache) -> hidden states`, and a head that turns chosen rows into logits."""

    def __init__(
        self,
        config: ModelConfig,
        embedding: Embedding,
        layers: Sequence[Layer],
        norm: RMSNorm,
        head: Callable[[Tensor], Tensor],
    ) -> None:
        """config: of this rank's part (`Shard.config`), where the model is split."""
        self.config = config
        self.embedding = embedding
        self.layers = list(layers)
        self.norm = norm
        self.lm_head = head
        self.rotary = rotary_table(config, self.dtype, self.device)

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    def make_cache(self, sequences: int, capacity: int) -> KVCache:
        """An empty cache of the right shape, dtype and device for this model."""
        c = self.config
        return KVCache(
            c.num_hidden_layers, sequences, c.num_key_value_heads, capacity, c.head_dim, self.dtype, self.device
        )

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        bias: Tensor | None,
        cache: KVCache,
        slots: int | Tensor,
        length: int,
    ) -> Tensor:
        """Runs rows through all layers, storing their keys and values, and returns their final hidden states.

        Args:
            ids, positions: `[N, R]`; positions are absolute and below `config.max_position_embeddings`.
            bias: `[N, 1, R, length]`, 0 where a row may see a slot and -inf elsewhere, in the model's dtype;
                None = all seen. Each row, padding included, must see at least one slot.
            cache: exactly N sequences (a `slice` of a larger one).
            slots: where the rows go: the first slot for all sequences, or `[N, R]`.
            length: slots 0 .. length-1 are attended to; it must cover the rows' own slots.

        Returns: `[N, R, hidden_size]`, after the last norm.
        """
        n, rows = ids.shape
        c = self.config
        x = self.embedding(ids).view(n * rows, -1)
        cos, sin = self.rotary[positions].view(n, rows, 1, 2, c.head_dim).unbind(3)
        bias = fold_bias(bias, c.groups)
        own = cache.views(slots, rows) if isinstance(slots, int) else None
        seen = cache.views(0, length)
        for index, layer in enumerate(self.layers):
            q, k, v = self._project(layer, layer.input_norm(x), cos, sin)
            if own is None:
                cache.write(index, k, v, slots)
            else:
                own[index][0].copy_(k)
                own[index][1].copy_(v)
            y = attend(q, *seen[index], bias).view(n, c.num_attention_heads, rows, c.head_dim)
            x = x + layer.output(y.transpose(1, 2).reshape(n * rows, -1))
            x = x + layer.mlp(layer.post_norm(x))
        return self.norm(x).view(n, rows, -1)

    __call__ = forward

    def head(self, hidden: Tensor) -> Tensor:
        """Logits `[..., vocab_size]` of hidden states `[..., hidden_size]`: float32, or float64 for a float64 model."""
        logits = self.lm_head(hidden)
        return logits if logits.dtype == torch.float64 else logits.float()

    def _project(self, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x `[N*R, H]` -> q `[N, kv_heads, groups*R, D]` (groups folded into rows), k and v `[N, kv_heads, R, D]`."""
        c = self.config
        n, rows = cos.shape[:2]
        heads, both = c.num_attention_heads, c.num_attention_heads + c.num_key_value_heads
        qkv = layer.qkv(x).view(n, rows, both + c.num_key_value_heads, c.head_dim)
        qk = rotate(layer.qk_norm(qkv[:, :, :both]), cos, sin).transpose(1, 2)
        q = qk[:, :heads].reshape(n, c.num_key_value_heads, c.groups * rows, c.head_dim)
        return q, qk[:, heads:], qkv[:, :, both:].transpose(1, 2)


def rotary_table(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`[max_position_embeddings, 2, head_dim]`: each position's cosines, then sines with the first half negated.

    Angles are computed in float32 (float64 for a float64 model), then rounded to the model's dtype. The sign is in
    the table because the rotation is written as x*cos + roll(x, D/2)*sin. Where only a part of the head is rotated,
    it is the beginning of each half, and the rest stands still.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    exponents = torch.arange(0, config.rotary_dim, 2, device=device, dtype=wide) / config.rotary_dim
    speeds = F.pad(1.0 / config.rope_theta**exponents, (0, (config.head_dim - config.rotary_dim) // 2))
    positions = torch.arange(config.max_position_embeddings, device=device, dtype=wide)
    angles = torch.outer(positions, speeds)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions for x `[N, R, heads, D]`; cos and sin `[N, R, 1, D]` as `rotary_table` gives them."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
