"""One layer of the transformer: attention over the cache, then the MLP, each with its norm in front."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from simsd.models import fused
from simsd.models.attention import Attend, attend, fold_bias
from simsd.models.cache import KVCache
from simsd.models.config import ModelConfig
from simsd.models.norm import RMSNorm
from simsd.native.layer import NativeRows


@dataclass(frozen=True)
class Layer:
    """Two halves, each `[N*R, hidden]` -> what is added to it; whole, or summed over ranks, the layer does not care.

    attention: `(x, rows, number of the layer)`; it stores the rows' keys and values. mlp: dense or mixture of experts.
    """

    attention: Callable[[Tensor, Rows, int], Tensor]
    mlp: Callable[[Tensor], Tensor]


class Rows:
    """The rows of a forward, in every form that its layers take them in; each is made when it is first needed."""

    def __init__(
        self,
        turns: Tensor,
        bias: Tensor | None,
        cache: KVCache,
        slots: int | Tensor,
        length: int,
        groups: int,
        attend: Attend = attend,
    ) -> None:
        """turns: `[N, R, 2, D]`, out of the rotary table. groups: query heads of a key/value head. attend: for layers
        without our own kernels. The others are as `Transformer.forward` takes them."""
        self.turns = turns
        self.bias = bias
        self.cache = cache
        self.slots = slots
        self.length = length
        self.groups = groups
        self.attend = attend

    @property
    def shape(self) -> torch.Size:
        """N and R."""
        return self.turns.shape[:2]

    @cached_property
    def cos_sin(self) -> tuple[Tensor, Tensor]:
        """Each `[N, R, 1, D]`."""
        cos, sin = self.turns[:, :, None].unbind(3)
        return cos, sin

    @cached_property
    def folded_bias(self) -> Tensor | None:
        return fold_bias(self.bias, self.groups)

    @cached_property
    def seen(self) -> list[tuple[Tensor, Tensor]]:
        """Each layer's keys and values that are attended to."""
        return self.cache.views(0, self.length)

    @cached_property
    def own(self) -> list[tuple[Tensor, Tensor]] | None:
        """Each layer's keys and values of these rows, where they lie side by side."""
        return self.cache.views(self.slots, self.shape[1]) if isinstance(self.slots, int) else None

    @cached_property
    def native(self) -> NativeRows:
        return NativeRows(self.turns.flatten(0, 1), self.slots, self.bias, self.cache.buffer, self.length)

    def store(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Keys and values `[N, kv_heads, R, D]` of these rows."""
        if self.own is None:
            self.cache.write(layer, k, v, self.slots)
        else:
            self.own[layer][0].copy_(k)
            self.own[layer][1].copy_(v)


class Attention:
    """output(attend(rotate(norm(heads of qkv(norm(x)))))), x `[N*R, hidden]` -> the same shape.

    qkv: hidden -> (heads + 2 * kv_heads) * head_dim, query heads first, then keys, then values.
    head_norms: the two head norms side by side, weight `[heads + kv_heads, head_dim]`.
    """

    def __init__(
        self,
        config: ModelConfig,
        norm: RMSNorm,
        qkv: Callable[[Tensor], Tensor],
        head_norms: RMSNorm,
        output: Callable[[Tensor], Tensor],
    ) -> None:
        """config: of this rank's heads."""
        self.config = config
        self.norm = norm
        self.qkv = qkv
        self.head_norms = head_norms
        self.output = output
        self.native = fused.attention(config, norm, qkv, head_norms, output)

    def __call__(self, x: Tensor, rows: Rows, layer: int) -> Tensor:
        if self.native is not None:
            return self.native(x, rows.native, layer)
        n, count = rows.shape
        q, k, v = self._project(self.norm(x), rows)
        rows.store(layer, k, v)
        y = rows.attend(q, *rows.seen[layer], rows.folded_bias).view(n, self.config.num_attention_heads, count, -1)
        return self.output(y.transpose(1, 2).reshape(n * count, -1))

    def _project(self, x: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """-> q `[N, kv_heads, groups*R, D]` (groups folded into rows), k and v `[N, kv_heads, R, D]`."""
        c = self.config
        n, count = rows.shape
        heads, both = c.num_attention_heads, c.num_attention_heads + c.num_key_value_heads
        qkv = self.qkv(x).view(n, count, both + c.num_key_value_heads, c.head_dim)
        qk = rotate(self.head_norms(qkv[:, :, :both]), *rows.cos_sin).transpose(1, 2)
        q = qk[:, :heads].reshape(n, c.num_key_value_heads, c.groups * count, c.head_dim)
        return q, qk[:, heads:], qkv[:, :, both:].transpose(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions for x `[N, R, heads, D]`; cos and sin `[N, R, 1, D]` as `rotary_table` gives them."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
