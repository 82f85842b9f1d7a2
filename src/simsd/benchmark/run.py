"""A whole run: what it is, its measurement, and its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from simsd import __version__
from simsd.benchmark.cell import Cell, check
from simsd.benchmark.device import device_name
from simsd.benchmark.journal import Journal
from simsd.benchmark.measure import Settings, groups, measure, places
from simsd.benchmark.report import Report
from simsd.benchmark.summary import summarise
from simsd.benchmark.workload import Item, fingerprint
from simsd.llm import LLM
from simsd.models.attention import kind_of
from simsd.models.linear import kernels_of
from simsd.progress import track


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a run that had measured `done` of `total` samples."""

    def __init__(self, done: int, total: int) -> None:
        super().__init__(f"interrupted after {done} of {total} samples")
        self.done, self.total = done, total


def run(
    llm: LLM,
    cells: Sequence[Cell],
    items: Sequence[Item],
    settings: Settings,
    *,
    path: Path | None = None,
    restart: bool = False,
    progress: bool = False,
) -> Report:
    """Measures all cells on all items and reports them.

    path: keeps the samples there, and goes on with those that it holds; restart: not with those.
    Raises ConfigError before anything is measured; PromptError; Interrupted; OSError where the file takes no more.
    """
    check(cells, llm.loaded["draft_model"] is not None, llm.options.block_length)
    what = identity(llm, cells, items, settings)
    expected = places(cells, items, settings)
    with Journal(path, what, restart=restart, expected=expected) as journal:
        try:
            with track("Measuring", len(expected), progress) as advance:
                measure(llm, cells, items, settings, journal, advance)
        except KeyboardInterrupt as stop:
            raise Interrupted(len(journal.places), len(expected)) from stop
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    rows = summarise(cells, journal.samples, len(groups(len(items), settings.batch_size)))
    return Report({**what, "resumed": journal.resumed, "date": now}, rows)


def _kernels(device_type: str, dtype: torch.dtype) -> str:
    found = kernels_of(device_type, dtype)
    return found if kind_of(dtype, device_type) == "sdpa" else f"{found}, FlexAttention"


def identity(llm: LLM, cells: Sequence[Cell], items: Sequence[Item], settings: Settings) -> dict[str, Any]:
    """Everything that makes samples comparable, as JSON: a run goes on only where all of it is the same."""
    return {
        "simsd": __version__,
        "torch": torch.__version__,
        **llm.loaded,
        "device": device_name(llm.device),
        "kernels": _kernels(llm.device.type, getattr(torch, str(llm.loaded["dtype"]))),
        "tensor_parallel_size": llm.tensor_parallel_size,
        "threads": torch.get_num_threads(),
        "block_length": llm.options.block_length,
        "settings": settings.to_dict(),
        "workload": dict(Counter(item.source for item in items)),
        "fingerprint": fingerprint(items),
        "cells": [cell.key for cell in cells],
    }
