"""Draws from a real vocabulary beside a plain way to do them, and beside the forward that their logits come from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.random_models import SIZES, built, configured
from benchmarks.timing import forward_call, median
from simsd.core.sampling import Sampler, draw, noise_key

SAMPLERS: dict[str, tuple[float, int, float]] = {
    "greedy": (0.0, 0, 1.0),
    "temperature 1": (1.0, 0, 1.0),
    "top-k 50": (1.0, 50, 1.0),
    "top-p 0.9": (1.0, 0, 0.9),
}


def plain_draw(logits: Tensor, temperature: float, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Token and confidence of rows `[n, V]`, written plainly, with PyTorch's own generator."""
    law = logits.softmax(-1)
    if temperature == 0:
        confidence, token = law.max(-1)
        return token, confidence
    kept = logits
    if top_k:
        kept = kept.masked_fill(kept < kept.topk(top_k).values[..., -1:], -torch.inf)
    if top_p < 1:
        ordered, order = kept.sort(-1, descending=True)
        mass = ordered.softmax(-1)
        over = mass.cumsum(-1) - mass >= top_p
        kept = torch.full_like(kept, -torch.inf).scatter(-1, order, ordered.masked_fill(over, -torch.inf))
    token = kept.softmax(-1).multinomial(1)
    return token.squeeze(-1), law.gather(-1, token).squeeze(-1)


def draws() -> list[dict[str, Any]]:
    """Of each sampler: time of the plain way over ours, and ours over a forward. The logits are noise, and ten tokens
    that stand out of it."""
    name = "0.6B (Qwen3-0.6B)"
    config = configured(SIZES[name])
    model = built(config, torch.float32)
    found = []
    for rows in (4, 20):
        forward = median(forward_call(model, rows, 256))
        noise = torch.Generator().manual_seed(0)
        logits = torch.randn(rows, config.vocab_size, generator=noise)
        logits[:, :: config.vocab_size // 10] += 16
        key = noise_key(torch.arange(rows))[None]
        for sampler, given in SAMPLERS.items():
            temperature, top_k, top_p = given
            own = Sampler.of([temperature], [top_k], [top_p], seed=[0])
            ours = median(lambda own=own, logits=logits, key=key: draw(logits[None], own, key))
            plain = median(lambda given=given, logits=logits: plain_draw(logits, *given))
            shares = {"plain_over_built": plain / ours, "share_of_forward": ours / forward}
            found.append({"model": name, "vocabulary": config.vocab_size, "sampler": sampler, "rows": rows, **shares})
    return found
