"""Whether models fit where they would be loaded, and what would help if they do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from simsd.errors import FitError
from simsd.models.available import free_bytes
from simsd.models.memory import (
    GIB,
    LEAST_TOKENS,
    Placed,
    cache_bytes,
    largest_bytes,
    measuring_bytes,
    verify_rows,
    working_bytes,
)

# On a CPU, measured: glibc keeps about an eighth of what layers were made of (of tensors above 32 MiB nothing), and a
# first forward sets up as much as LEAST_KEPT.
_KEPT_SHARE = 8
LEAST_KEPT, MOST_KEPT = 24 << 20, 256 << 20

TOKEN = 720  # bytes of a tokenizer for each token of a vocabulary of 150,000
PROCESS = 160 << 20  # Python and PyTorch, once more in the process of each further rank


@dataclass(frozen=True)
class Asked:
    """So many sequences side by side, of so many tokens each; None: the least that is of any use."""

    sequences: int = 1
    tokens: int | None = None

    def of(self, model: Placed) -> int:
        return min(self.tokens or LEAST_TOKENS, model.config.max_position_embeddings)


def check_fits(models: Sequence[Placed], sequences: int = 1, tokens: int | None = None) -> None:
    """Refuses models that cannot be held together with a cache of so many sequences and tokens.

    models: the target and, if there is one, its draft model. A device that is not in this machine refuses nothing.
    tokens: None asks for the least that is of any use.

    Raises: FitError, for the first device that is too small.
    """
    asked = Asked(sequences, tokens)
    for device, needed in needed_bytes(models, sequences, tokens).items():
        here, free = [model for model in models if device in model.devices], free_bytes(device)
        if free is not None and needed > free:
            names = " and ".join(model.name for model in here)
            ways, together = _ways(models, asked, device, free)
            raise FitError(
                f"{names} need{'s' if len(here) == 1 else ''} {gib(needed)}, but {gib(free)} are free on {device}",
                *ways,
                together=together,
            )


def needed_bytes(
    models: Sequence[Placed], sequences: int, tokens: int | None, *, drafting: bool = False
) -> dict[torch.device, int]:
    """What each device must hold at once: weights, cache and working memory, where models take turns at working; or the
    weights while they are loaded; and what comes on top on a CPU.

    drafting: rounds that draft as far as `verify_rows`; else ordinary ones, which `auto` can always fall back to.
    """
    asked = Asked(sequences, tokens)
    devices = dict.fromkeys(device for model in models for device in model.devices)
    return {device: _needed(models, asked, device, drafting) for device in devices}


def overhead_bytes(models: Sequence[Placed], device: torch.device) -> int:
    """What the allocator keeps, tokenizers, and the processes of further ranks; 0 on a GPU, where none of it is."""
    if device.type != "cpu":
        return 0
    here = [model for model in models if device in model.devices]
    weights = sum(model.weight_bytes * model.devices.count(device) for model in here)
    kept = min(max(weights // _KEPT_SHARE, LEAST_KEPT), MOST_KEPT)
    ranks = max(model.devices.count(device) for model in here)
    return kept + sum(model.config.vocab_size for model in here) * TOKEN + (ranks - 1) * PROCESS


def _needed(models: Sequence[Placed], asked: Asked, device: torch.device, drafting: bool) -> int:
    held = loaded = loading = working = 0
    for model in models:
        ranks, tokens = model.devices.count(device), asked.of(model)
        if not ranks:
            continue
        loading = max(loading, loaded + ranks * (model.weight_bytes + largest_bytes(model)))
        loaded += ranks * model.weight_bytes
        held += ranks * cache_bytes(model, asked.sequences, tokens)
        rows = verify_rows(model.config.block_length or 1) if drafting and len(models) > 1 else None
        working = max(working, working_bytes(model, asked.sequences, tokens, rows))
        if len(models) > 1 and model is models[0]:
            working = max(working, measuring_bytes(model, tokens))
    return max(loaded + held + working, loading) + overhead_bytes(models, device)


def gib(size: int) -> str:
    """So many bytes in words."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / (1 << 20):.1f} MiB"


Way = tuple[str, str | None]


def _ways(models: Sequence[Placed], asked: Asked, device: torch.device, free: int) -> tuple[list[Way], bool]:
    """The options that would make it fit, each alone; else those that would do it together, and True."""
    changes: list[tuple[Way, Callable[[Placed], Placed], Asked]] = [
        (("dtype", "bfloat16"), _narrow, asked),
        (("quantize", "int8"), _rounded, asked),
        (("max_model_len", None), _same, replace(asked, tokens=None)),
        (("max_num_seqs", None), _same, replace(asked, sequences=1)),
    ]

    def needed(change: Callable[[Placed], Placed], less: Asked) -> int:
        return _needed([change(model) for model in models], less, device, drafting=False)

    now = needed(_same, asked)
    useful = [(way, needed(change, less)) for way, change, less in changes]
    enough = [way for way, size in useful if size <= free]
    if enough:
        return enough, False
    together = needed(lambda one: _rounded(_narrow(one)), Asked())
    return [way for way, size in useful if size < now] if together <= free else [], True


def _same(model: Placed) -> Placed:
    return model


def _narrow(model: Placed) -> Placed:
    return replace(model, dtype=torch.bfloat16) if model.dtype.itemsize > 2 else model


def _rounded(model: Placed) -> Placed:
    return replace(model, int8=True)
