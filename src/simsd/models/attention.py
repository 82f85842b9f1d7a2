"""Attention of a few rows over cached keys and values: one function, the fastest kernels for each device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from simsd.models.linear import can_pack, multiply

# On a CPU, counted in scores:
_HEAD_BY_HEAD = 1 << 15  # of one head: from here on oneDNN's products, one head at a time, beat the batched ones
MOST_SCORES = 1 << 24  # at most this many are held at once; a long prefill goes through in pieces of its rows


def fold_bias(bias: Tensor | None, groups: int) -> Tensor | None:
    """The bias `[N, 1, R, K]` repeated for rows in which `groups` query heads are folded: `[N, 1, groups*R, K]`.

    Done once per forward; every layer uses the result.
    """
    if bias is None or groups == 1:
        return bias
    n, _, rows, length = bias.shape
    return bias.expand(n, groups, rows, length).reshape(n, 1, groups * rows, length)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """softmax(q k^T / sqrt(D) + bias) v.

    On a CPU, in bfloat16, scores and weights are rounded as they are in an ordinary forward. Measured, a row then
    comes out the same to the bit however many rows stand beside it, which exact verification lives on; the fused
    kernel and float32 scores are finer, but carry the order of their sums into the next rounding.

    Grouped queries are folded into rows by the caller, so that keys and values are never repeated.

    Args:
        q: `[N, kv_heads, groups*R, D]`, contiguous.
        k, v: `[N, kv_heads, K, D]`, usually views on the cache.
        bias: additive, `[N, 1, groups*R, K]` in q's dtype, or None if every row sees every slot. Each row must see at
            least one slot.

    Returns: `[N, kv_heads, groups*R, D]`.
    """
    if q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    q = q * q.shape[-1] ** -0.5
    many = q.dtype == torch.float32 and q.shape[2] * k.shape[2] >= _HEAD_BY_HEAD
    kernel = _attend_head_by_head if many and can_pack("cpu", q.dtype) else _attend_batched
    return kernel(q, k, v, bias)


def _attend_batched(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    n, kv_heads, rows, _ = q.shape
    step = max(1, MOST_SCORES // (n * kv_heads * k.shape[2]))
    if rows > step:
        parts = q.split(step, dim=2)
        biases = [None] * len(parts) if bias is None else bias.split(step, dim=2)
        pairs = zip(parts, biases, strict=True)
        return torch.cat([_attend_batched(part, k, v, part_bias) for part, part_bias in pairs], dim=2)
    # Views: in the cache, sequences and heads lie side by side.
    scores = _scores(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), bias)
    return torch.bmm(_softmax(scores), v.flatten(0, 1)).view(q.shape)


def _scores(q: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    """q `[N*kv_heads, rows, D]`, keys `[N*kv_heads, D, K]`, bias `[N, 1, rows, K]` -> `[N*kv_heads, rows, K]`."""
    if bias is not None and bias.shape[0] == 1:
        return torch.baddbmm(bias[0], q, keys)
    scores = torch.bmm(q, keys)
    if bias is not None:
        scores.view(bias.shape[0], -1, *scores.shape[1:]).add_(bias)
    return scores


def _attend_head_by_head(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    n, kv_heads, rows, _ = q.shape
    out = torch.empty_like(q)
    step = max(1, MOST_SCORES // k.shape[2])
    for sequence in range(n):
        for head in range(kv_heads):
            keys, values = k[sequence, head], v[sequence, head].T
            for start in range(0, rows, step):
                piece = slice(start, start + step)
                scores = multiply(q[sequence, head, piece], keys)
                if bias is not None:
                    scores.add_(bias[sequence, 0, piece])
                out[sequence, head, piece] = multiply(scores.softmax(-1), values)
    return out


def _softmax(scores: Tensor) -> Tensor:
    if scores.dtype in (torch.float32, torch.float64):
        return scores.softmax(-1)
    return scores.softmax(-1, dtype=torch.float32).to(scores.dtype)
