"""Samples and rows with chosen figures, and the smallest real run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simsd.benchmark.cell import SCHEDULES, Cell, with_baselines
from simsd.benchmark.report import Report
from simsd.benchmark.sample import COUNTED, Answer, Sample
from simsd.benchmark.summary import Row, summarise
from simsd.evaluation.statistics import Spread

STATIC, DYNAMIC = SCHEDULES["static"], SCHEDULES["dynamic"]
NONE = Cell("none", STATIC)
EXACT = Cell("exact", STATIC)
SETTINGS = {
    "max_tokens": 16, "repeats": 1, "batch_size": 1, "seed": 0, "top_k": 0, "top_p": 1.0, "ignore_eos": False,
}  # fmt: skip


def sample(
    cell: Cell,
    repeat: int = 0,
    group: int = 0,
    *,
    answers: Sequence[tuple[str, bool | None]] = (("a", True),),
    tokens: int = 10,
    peak: int = 1000,
    **cost: float,
) -> Sample:
    """Answers of `tokens` tokens each, (text, right); what is not in `cost` is 0, but for a second of decoding."""
    found = dict.fromkeys(COUNTED, 0.0) | {"seconds": 1.0, "target_forwards": 1.0} | cost
    return Sample(
        cell.key, repeat, group, [Answer(tokens, text, "stop", right) for text, right in answers], found, peak
    )


def rows(*cells: Cell, **figures: Any) -> list[Row]:
    """Rows of the cells and their baselines, all with the same figures."""
    found = with_baselines(cells)
    return summarise(found, [sample(cell, **figures) for cell in found], 1)


def known(spread: Spread | None) -> Spread:
    """A figure that must be there."""
    assert spread is not None
    return spread


def report(found: Sequence[Row], **about: Any) -> Report:
    """A report on those rows, of an invented run."""
    known = {
        "simsd": "1", "torch": "2", "model": "big", "draft_model": "small", "dtype": "float32", "device": "a machine",
        "threads": 1, "block_length": 4, "settings": SETTINGS, "workload": {"math": 1}, "fingerprint": "f",
        "cells": [row.cell.key for row in found], "resumed": False, "date": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return Report({**known, **about}, list(found))
