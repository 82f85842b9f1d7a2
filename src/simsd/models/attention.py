"""Attention of a few rows over cached keys and values: one function, the fastest kernels for each device."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from simsd.errors import ConfigError
from simsd.models import flex
from simsd.models.config import ModelConfig
from simsd.models.linear import own_kernels

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]  # as `attend`
SWITCH = "SIMSD_ATTENTION"  # in the environment
KINDS = ("sdpa", "flex")
MOST_SCORES = 1 << 24  # at most this many are held at once, in bfloat16 on a CPU


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

    In bfloat16 on a CPU, scores and weights are rounded as they are in an ordinary forward. Measured, a row then
    comes out the same to the bit however many rows stand beside it, which exact verification lives on; the fused
    kernel is finer, but carries the order of its sums into the next rounding.

    Grouped queries are folded into rows by the caller, so that keys and values are never repeated.

    Args:
        q: `[N, kv_heads, groups*R, D]`, contiguous.
        k, v: `[N, kv_heads, K, D]`, usually views on the cache.
        bias: additive, `[N, 1, groups*R, K]` in q's dtype, or None if every row sees every slot. Each row must see at
            least one slot.

    Returns: `[N, kv_heads, groups*R, D]`.
    """
    if q.device.type == "cpu" and q.dtype == torch.bfloat16:
        return _attend_rounded(q * q.shape[-1] ** -0.5, k, v, bias)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def attention_of(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Attend:
    """`attend`, or FlexAttention where it is asked for. Raises: ConfigError, as `kind_of` and `flexible`."""
    return attend if kind_of(dtype, device.type) == "sdpa" else flexible(config, dtype, device)


def flexible(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Attend:
    """FlexAttention, compiled for rows of this model.

    Raises: ConfigError where PyTorch cannot do that here.
    """
    heads, size = config.num_key_value_heads, config.head_dim
    q = torch.zeros(1, heads, 2 * config.groups, size, dtype=dtype, device=device)
    k, v = q.new_zeros(2, 1, heads, 48, size)[..., :32, :]  # views, as a cache gives them
    try:
        flex.flex_attend(q, k, v, q.new_zeros(1, 1, q.shape[2], k.shape[2]))
    except Exception as error:  # whatever the compiler raises
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"PyTorch cannot compile FlexAttention here, leave out {SWITCH}=flex ({why})") from error
    return flex.flex_attend


def kind_of(dtype: torch.dtype, device_type: str) -> str:
    """Which of KINDS the environment asks for, and can be had: FlexAttention has not all dtypes, and our own kernels
    attend themselves.

    Raises: ConfigError for one that there is not.
    """
    kind = os.environ.get(SWITCH, "").strip().lower() or "sdpa"
    if kind not in KINDS:
        raise ConfigError(f"{SWITCH} is {kind!r}; it can be {' or '.join(KINDS)}")
    return "sdpa" if dtype not in flex.DTYPES or own_kernels(device_type, dtype) is not None else kind


def _attend_rounded(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    n, kv_heads, rows, _ = q.shape
    step = max(1, MOST_SCORES // (n * kv_heads * k.shape[2]))
    if rows > step:
        parts = q.split(step, dim=2)
        biases = [None] * len(parts) if bias is None else bias.split(step, dim=2)
        pairs = zip(parts, biases, strict=True)
        return torch.cat([_attend_rounded(part, k, v, part_bias) for part, part_bias in pairs], dim=2)
    # Views: in the cache, sequences and heads lie side by side.
    scores = _scores(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), bias)
    weights = scores.softmax(-1, dtype=torch.float32).to(scores.dtype)
    return torch.bmm(weights, v.flatten(0, 1)).view(q.shape)


def _scores(q: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    """q `[N*kv_heads, rows, D]`, keys `[N*kv_heads, D, K]`, bias `[N, 1, rows, K]` -> `[N*kv_heads, rows, K]`."""
    if bias is not None and bias.shape[0] == 1:
        return torch.baddbmm(bias[0], q, keys)
    scores = torch.bmm(q, keys)
    if bias is not None:
        scores.view(bias.shape[0], -1, *scores.shape[1:]).add_(bias)
    return scores
