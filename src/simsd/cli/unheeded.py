"""Flags that change nothing where they are given: no mistake, but to be told, or a figure is put down to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from simsd.engine.options import DecodingOptions


def by_method(given: Mapping[str, Any], options: DecodingOptions) -> list[str]:
    """A sentence for each reason. given: keyword arguments of `LLM`, as they were typed; options: resolved ones."""
    from simsd.benchmark.cell import SPECULATIVE, matters

    method, schedule, drafter = options.method, options.remasking_strategy, options.drafter
    told = []
    if method == "none" and (idle := [name for name in given if name in (*SPECULATIVE, "draft_ahead")]):
        told.append(f"{_flags(idle)} nothing: --method none drafts nothing")
    elif method != "none" and drafter not in ("model", "hybrid"):
        if idle := [name for name in ("draft_steps", "draft_ahead") if given.get(name)]:
            told.append(f"{_flags(idle)} nothing: --drafter {drafter} asks no draft model")
    elif method != "none" and given.get("draft_ahead") and options.acceptance != "replay":
        told.append(f"{_flags(['draft_ahead'])} nothing: --method {method} draws its draft anew in each round")
    for name in ("confidence_threshold", "eb_threshold"):
        if name in given and not matters(name, method, schedule):
            told.append(f"{_flags([name])} nothing: --remasking-strategy is {schedule}")
    return told


def by_device(given: Mapping[str, Any], device: torch.device) -> list[str]:
    """Likewise of what is of a GPU alone."""
    idle = given.get("enforce_eager") and device.type != "cuda"
    return [f"{_flags(['enforce_eager'])} nothing: on a CPU no graphs are recorded"] if idle else []


def _flags(names: Iterable[str]) -> str:
    flags = [f"--{name.replace('_', '-')}" for name in names]
    return f"{' and '.join(flags)} change{'s' if len(flags) == 1 else ''}"
