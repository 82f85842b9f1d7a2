"""What drafters are asked for and asked about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from simsd.core.sampling import Sampler
from simsd.core.schedule import Schedule
from simsd.drafters.base import DraftRequest
from tests.core.cases import block_state, ids, make_sampler, make_schedule


@dataclass
class View:
    """A sequence as a drafter sees it."""

    text_ids: list[int] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)
    block: list[int] = field(default_factory=list)
    taken: int = 0


def view(text: str, prompt: int | None = None, **memory: Any) -> View:
    """A sequence whose prompt and finished blocks are `text`; the first `prompt` tokens of it are the prompt."""
    return View(ids(text), {"prompt_length": len(ids(text)) if prompt is None else prompt} | memory)


def ask(
    *blocks: str,
    sequences: Sequence[View],
    window: int = 1,
    by_draw: bool = True,
    sampler: Sampler | None = None,
    schedule: Schedule | None = None,
    taken: int | Sequence[int] = 0,
    salt: int = 0,
) -> DraftRequest:
    """A request for the sequences that stand at `blocks`."""
    size, batch = len(ids(blocks[0])), len(blocks)
    for one, block in zip(sequences, blocks, strict=True):
        one.block = ids(block)
    state = block_state(*blocks, start=[len(s.text_ids) for s in sequences], taken=taken)
    return DraftRequest(
        state,
        window,
        sampler or make_sampler(batch=batch),
        schedule or make_schedule(block_length=size, batch=batch),
        by_draw,
        torch.full((batch,), salt),
        sequences,
    )
