"""Continuous batching: tokens a second by the number of sequences side by side."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from simsd import LLM, SamplingParams
from simsd.benchmark.workload import Item, ask, load_items
from simsd.evaluation.statistics import Spread
from simsd.evaluation.suites import SUITES
from simsd.progress import track

SCHEDULES = ("low_confidence_static", "low_confidence_dynamic")


def first_items(count: int) -> list[Item]:
    """The first questions of each suite, so many of all together."""
    return load_items(SUITES, -(-count // len(SUITES)))[:count]


def batches(questions: int, repeats: int) -> list[dict[str, Any]]:
    """Tokens a second by the sequences side by side, each method and schedule, relative to one at a time.

    same_text: whether every answer of every repeat is that of ordinary decoding, one at a time.
    """
    base = LLM(method="none", dtype="float32", device="cpu", prefix_caching=False)
    items = first_items(questions)
    engines = {
        (method, schedule, count): base.with_options(method=method, remasking_strategy=schedule, max_num_seqs=count)
        for schedule in SCHEDULES
        for method in ("none", "exact")
        for count in (1, 4, 16, 64)
    }
    params = [SamplingParams(max_tokens=128)] * len(items)
    for llm in engines.values():
        ask(llm, items[: len(SUITES)], params[: len(SUITES)])  # untimed: costs are measured, buffers grow
    speeds: dict[Any, list[float]] = {key: [] for key in engines}
    texts: dict[Any, list[list[list[int]]]] = {key: [] for key in engines}  # of every repeat
    with track("batches", repeats * len(engines), sys.stderr.isatty()) as advance:
        for _ in range(repeats):
            for key, llm in engines.items():
                begin = time.perf_counter()
                answers = ask(llm, items, params)
                seconds = time.perf_counter() - begin
                texts[key].append([answer.token_ids for answer in answers])
                speeds[key].append(sum(map(len, texts[key][-1])) / seconds)
                advance(1)
    rows = []
    for (method, schedule, count), mine in speeds.items():
        alone, ordinary = speeds[method, schedule, 1], speeds["none", schedule, count]
        rows.append(
            {
                "method": method,
                "schedule": schedule,
                "sequences": count,
                "ratio_to_one": vars(ratio(mine, alone)),
                "ratio_to_ordinary": vars(ratio(mine, ordinary)),
                "same_text": texts[method, schedule, count] == texts["none", schedule, 1],
            }
        )
    return rows


def ratio(one: Sequence[float], other: Sequence[float]) -> Spread:
    """Repeat by repeat."""
    return Spread.of([a / b for a, b in zip(one, other, strict=True)])
