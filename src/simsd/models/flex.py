"""Attention through PyTorch's FlexAttention: compiled for the device, and for few rows split along the text, so that
all of a GPU works on one sequence (optional; docs/how-to/gpu.md)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

KINDS = 64  # that are compiled: of models, dtypes, one sequence or several
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # what its kernels are made for


@torch.library.custom_op("simsd::flex_attend", mutates_args=())
def flex_attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """As `attention.attend`. It is compiled when it first runs, and once more for whatever differs in kind: one
    sequence or several, another head size or dtype, on a CPU another number of threads.

    An operator of its own, because what watches operators (`engine.capture`) would keep PyTorch from compiling.
    """
    one_row = q.shape[2] == 1  # which PyTorch 2.13 cannot compile for a CPU
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias) if one_row else _compiled()(q, k, v, bias)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    # beyond its limit PyTorch would go on uncompiled, many times more slowly; older versions know one limit for all
    more: dict[str, Any] = {"recompile_limit": KINDS}
    known = inspect.signature(torch.compile).parameters
    return torch.compile(plain, dynamic=True, **{name: more[name] for name in more if name in known})


def plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Uncompiled."""
    from torch.nn.attention.flex_attention import flex_attention  # slow to import, and rarely wanted

    if bias is None:
        return flex_attention(q, k, v)  # pyright: ignore[reportReturnType]

    def add(score: Tensor, n: Tensor, head: Tensor, row: Tensor, slot: Tensor) -> Tensor:
        return score + bias[n, 0, row, slot]

    return flex_attention(q, k, v, score_mod=add)  # pyright: ignore[reportReturnType]
