"""What docs/results.md is made from: the embedded pair in every way to decode, and the paper's ablations.

    python -m benchmarks.measurements            # everything (about an hour on one core), then the page
    python -m benchmarks.measurements --page     # the page and its plots alone, from the committed figures

A measurement that is interrupted goes on where it was. Compare ratios, not absolute figures.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.arguments import positive
from benchmarks.results_page import write_page
from simsd import LLM
from simsd.benchmark.cell import Cell, matrix
from simsd.benchmark.journal import Journal
from simsd.benchmark.measure import Settings
from simsd.benchmark.recipes import RECIPES
from simsd.benchmark.run import identity, run
from simsd.benchmark.sample import Sample
from simsd.benchmark.summary import Row, summarise
from simsd.benchmark.sweep import Sweep
from simsd.benchmark.workload import Item, load_items
from simsd.evaluation.suites import SUITES

RESULTS = Path(__file__).resolve().parent / "results"
METHODS = ("none", "simsd", "exact", "exact-draft-order")
BLOCK_LENGTHS = (4, 8, 16)
MAX_TOKENS = 128

# What a suite's part of the text run says; its costs are those of all suites together.
TEXT = ("cell", "prompts", "accuracy", "accuracy_interval", "same_text", "lost", "gained", "p_value")


def cells() -> list[Cell]:
    """All methods, schedules, block lengths and temperatures of the page."""
    return matrix(METHODS, block_lengths=BLOCK_LENGTHS, temperatures=(0.0, 1.0))


def measure_speed(llm: LLM, journals: Path, limit: int, repeats: int) -> None:
    """Batch 1, some questions of each suite, repeated: tokens per forward, acceptance, speed."""
    items = load_items(SUITES, limit)
    settings = Settings(max_tokens=MAX_TOKENS, repeats=repeats)
    report = run(llm, cells(), items, settings, path=journals / "speed.jsonl", progress=True)
    _write("speed", report.to_dict())


def measure_text(llm: LLM, journals: Path, limit: int | None) -> None:
    """All questions, in batches: accuracy and agreement with ordinary decoding, of each suite."""
    items = load_items(SUITES, limit)
    settings = Settings(max_tokens=MAX_TOKENS, repeats=1, batch_size=16)
    path = journals / "text.jsonl"
    report = run(llm, cells(), items, settings, path=path, progress=True)
    samples = Journal(path, identity(llm, cells(), items, settings)).samples
    suites = {name: _text(summarise(cells(), _of(samples, items, name), 1)) for name in SUITES}
    _write("text", {"about": report.about, "all": _text(report.rows), "suites": suites})


def _of(samples: Sequence[Sample], items: Sequence[Item], suite: str) -> list[Sample]:
    """The samples with the answers of one suite alone; each sample of this run holds all answers of a cell."""
    kept = [index for index, item in enumerate(items) if item.source == suite]
    return [replace(sample, answers=[sample.answers[index] for index in kept]) for sample in samples]


def _text(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [{name: row.to_dict()[name] for name in TEXT} for row in rows]


def measure_sweeps(llm: LLM, journals: Path, limit: int, repeats: int) -> None:
    """The recipes of `simsd sweep`."""
    fixed = {"block_length": llm.options.block_length}
    items = load_items(SUITES, limit)
    settings = Settings(max_tokens=MAX_TOKENS, repeats=repeats)
    for name, recipe in RECIPES.items():
        print(f"sweep {name}", flush=True)
        values = recipe.default_values(has_draft_model=True)
        found = recipe.cells(values, fixed)
        report = run(llm, found, items, settings, path=journals / f"sweep-{name}.jsonl", progress=True)
        _write(f"sweep-{name}", Sweep.of(recipe, values, fixed, 0.0, report).to_dict())


def _write(name: str, data: dict[str, Any]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="measure nothing")
    parser.add_argument("--only", nargs="+", choices=("speed", "text", "sweeps"), default=("speed", "text", "sweeps"))
    parser.add_argument("--speed-questions", type=positive, default=6, help="of each suite, for the speed")
    parser.add_argument("--sweep-questions", type=positive, default=4, help="of each suite, for the ablations")
    parser.add_argument("--text-questions", type=positive, help="of each suite, for the text; default: all")
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--journals", type=Path, default=RESULTS / "journals", help="where samples are kept")
    args = parser.parse_args()
    if not args.page:
        torch.set_num_threads(args.threads)
        llm = LLM(method="none", dtype="float32", device="cpu")
        if "speed" in args.only:
            measure_speed(llm, args.journals, args.speed_questions, args.repeats)
        if "text" in args.only:
            measure_text(llm, args.journals, args.text_questions)
        if "sweeps" in args.only:
            measure_sweeps(llm, args.journals, args.sweep_questions, args.repeats)
    write_page()


if __name__ == "__main__":
    main()
