"""Attention of a few rows over cached keys and values: one function, the fastest kernel for each device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Scores of at most this many numbers are held at once on a CPU; a long prefill goes through in pieces of its rows.
_MAX_SCORES = 1 << 24


def fold_bias(bias: Tensor | None, groups: int) -> Tensor | None:
    """The bias `[N, 1, R, K]` repeated for rows in which `groups` query heads are folded: `[N, 1, groups*R, K]`.

    Done once per forward; every layer uses the result.
    """
    if bias is None or groups == 1:
        return bias
    n, _, rows, length = bias.shape
    return bias.expand(n, groups, rows, length).reshape(n, 1, groups * rows, length)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """softmax(q k^T / sqrt(D) + bias) v, with the softmax in float32 at least.

    Grouped queries are folded into rows by the caller, so that keys and values are never repeated.

    Args:
        q: `[N, kv_heads, groups*R, D]`.
        k, v: `[N, kv_heads, K, D]`, usually views on the cache.
        bias: additive, `[N, 1, groups*R, K]`, or None if every row sees every slot. Each row must see
            at least one slot.

    Returns: `[N, kv_heads, groups*R, D]`.
    """
    if q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    rows = max(1, _MAX_SCORES // (q.shape[0] * q.shape[1] * k.shape[2]))
    if q.shape[2] <= rows:
        return _attend_plain(q, k, v, bias)
    pieces = range(0, q.shape[2], rows)
    biases = [None] * len(pieces) if bias is None else bias.split(rows, dim=2)
    parts = zip(q.split(rows, dim=2), biases, strict=True)
    return torch.cat([_attend_plain(part, k, v, part_bias) for part, part_bias in parts], dim=2)


def _attend_plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    # Two plain products: on a CPU, with a mask and few rows, far faster than the fused kernel.
    scores = torch.matmul(q, k.transpose(-1, -2)).mul_(q.shape[-1] ** -0.5)
    if bias is not None:
        scores = scores.add_(bias)
    wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
    return torch.matmul(scores.softmax(-1, dtype=wide).to(v.dtype), v)
