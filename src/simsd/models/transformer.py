"""The Qwen3-shaped transformer of block-diffusion checkpoints, as inference code over a KV cache (method section 1).

No autograd and no modules: a forward is a loop over layers that hold fused weights. The caller sets
`torch.inference_mode()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from simsd.models.attention import attention_of
from simsd.models.cache import KVCache
from simsd.models.config import ModelConfig
from simsd.models.layer import Layer, Rows
from simsd.models.norm import RMSNorm
from simsd.models.vocabulary import Embedding


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
        self.attend = attention_of(config, self.dtype, self.device)
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
        x = self.embedding(ids).view(n * rows, -1)
        given = Rows(self.rotary[positions], bias, cache, slots, length, self.config.groups, self.attend)
        for index, layer in enumerate(self.layers):
            x += layer.attention(x, given, index)
            x += layer.mlp(x)
        return self.norm(x).view(n, rows, -1)

    __call__ = forward

    def head(self, hidden: Tensor) -> Tensor:
        """Logits `[..., vocab_size]` of hidden states `[..., hidden_size]`: float32, or float64 for a float64 model."""
        logits = self.lm_head(hidden)
        return logits if logits.dtype == torch.float64 else logits.float()


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
