"""Attention of a few rows over cached keys and values: one function, the fastest kernels for each device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from simsd.models.linear import can_pack, multiply

# Measured on a CPU with rows of 64 numbers. Scores of one head, in numbers:
_HEAD_BY_HEAD = 1 << 15  # from here on oneDNN's products, one head at a time, beat the batched ones (float32 only)
_MAX_SCORES = 1 << 24  # at most this many are held at once; a long prefill goes through in pieces of its rows
_FUSED_ROWS = 64  # in bfloat16 the fused kernel is the faster one up to here


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
        q: `[N, kv_heads, groups*R, D]`, contiguous.
        k, v: `[N, kv_heads, K, D]`, usually views on the cache.
        bias: additive, `[N, 1, groups*R, K]` in q's dtype, or None if every row sees every slot. Each row must see at
            least one slot.

    Returns: `[N, kv_heads, groups*R, D]`.
    """
    if q.device.type != "cpu" or (q.dtype == torch.bfloat16 and q.shape[2] <= _FUSED_ROWS):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    if q.dtype == torch.float32 and q.shape[2] * k.shape[2] >= _HEAD_BY_HEAD and can_pack("cpu", q.dtype):
        return _attend_head_by_head(q, k, v, bias)
    return _attend_batched(q, k, v, bias)


def _attend_batched(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    n, kv_heads, rows, _ = q.shape
    keys, values = k.flatten(0, 1).transpose(1, 2), v.flatten(0, 1)  # views: sequences and heads lie side by side
    step = max(1, _MAX_SCORES // (n * kv_heads * k.shape[2]))
    parts = [q] if rows <= step else q.split(step, dim=2)
    biases = [bias] if bias is None or rows <= step else bias.split(step, dim=2)
    biases = biases * len(parts) if bias is None else biases
    out = [
        torch.bmm(_softmax(_scores(part.flatten(0, 1), keys, part_bias)), values).view(n, kv_heads, part.shape[2], -1)
        for part, part_bias in zip(parts, biases, strict=True)
    ]
    return out[0] if len(out) == 1 else torch.cat(out, dim=2)


def _scores(q: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    """q `[N*kv_heads, rows, D]`, keys `[N*kv_heads, D, K]`, bias `[N, 1, rows, K]` -> `[N*kv_heads, rows, K]`."""
    scale = q.shape[-1] ** -0.5
    if bias is not None and bias.shape[0] == 1:
        return torch.baddbmm(bias[0], q, keys, alpha=scale)
    scores = torch.bmm(q, keys).mul_(scale)
    if bias is not None:
        scores.view(bias.shape[0], -1, *scores.shape[1:]).add_(bias)
    return scores


def _attend_head_by_head(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    n, kv_heads, rows, width = q.shape
    out = torch.empty_like(q)
    q = q * width**-0.5
    step = max(1, _MAX_SCORES // k.shape[2])
    for sequence in range(n):
        for head in range(kv_heads):
            keys, values = k[sequence, head], v[sequence, head].T
            for start in range(0, rows, step):
                piece = slice(start, start + step)
                scores = multiply(q[sequence, head, piece], keys)
                if bias is not None:
                    scores.add_(bias[sequence, 0, piece])
                out[sequence, head, piece] = multiply(_softmax(scores), values)
    return out


def _softmax(scores: Tensor) -> Tensor:
    if scores.dtype in (torch.float32, torch.float64):
        return scores.softmax(-1)
    return scores.softmax(-1, dtype=torch.float32).to(scores.dtype)
