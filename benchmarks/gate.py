"""The regression gate: a fresh run against the committed one.

    python -m benchmarks.gate --quick      # part of the questions; under a minute; what continuous integration runs
    python -m benchmarks.gate              # all of them
    python -m benchmarks.gate --update     # measures and commits to a new standard: say in the change why

It fails, with exit code 1, on a text of an exact method that is not ordinary decoding's, and on a loss over 10 % in
tokens per forward. Windows are fixed, so that tokens per forward depend on no clock. Times are never compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from simsd import LLM
from simsd.benchmark.cell import Cell, matrix
from simsd.benchmark.measure import Settings
from simsd.benchmark.run import run
from simsd.benchmark.workload import load_items
from simsd.evaluation.suites import SUITES

STANDARD = Path(__file__).resolve().parent / "results" / "gate.json"
MOST_LOSS = 0.10
QUICK, FULL = 1, 8  # questions of each suite

EXACT = "exact"


@dataclass(frozen=True)
class Finding:
    """What a cell did: tokens per forward, and the share of texts that are ordinary decoding's."""

    tokens_per_forward: float
    same_text: float


def cells() -> list[Cell]:
    """Greedy and sampled, both schedules, every kind of state, short and long windows; all with fixed windows."""
    methods = ("simsd", "exact", "exact-draft-order")
    found = matrix(methods, temperatures=(0.0,), vary={"num_speculative_tokens": (4, 8)})
    found += matrix((EXACT,), temperatures=(1.0,), fixed={"num_speculative_tokens": 8})
    found += matrix((EXACT,), vary={"states": ("chain", "subsets")}, fixed={"num_speculative_tokens": 8})
    found += matrix((EXACT,), block_lengths=(8,), fixed={"num_speculative_tokens": 8})
    return list(dict.fromkeys(found))


def measure(questions: int) -> dict[str, Finding]:
    """Runs all cells on the first questions of each suite."""
    llm = LLM(method="none", dtype="float32", device="cpu")
    settings = Settings(max_tokens=64, repeats=1)
    report = run(llm, cells(), load_items(SUITES, questions), settings, progress=sys.stderr.isatty())
    return {row.cell.key: Finding(row.tokens_per_forward, row.same_text) for row in report.rows}


def compare(found: Mapping[str, Finding], standard: Mapping[str, Finding]) -> list[str]:
    """What is worse than the standard, in sentences; nothing if all is well."""
    wrong = []
    for key in sorted({*found, *standard}):
        if key not in found or key not in standard:
            where = "the standard" if key in found else "this run"
            wrong.append(f"{key}: not in {where}; measure the standard again with --update")
            continue
        new, old = found[key], standard[key]
        if key.split()[0] == EXACT and new.same_text < 1:
            wrong.append(f"{key}: only {new.same_text:.1%} of the texts are ordinary decoding's; all must be")
        ratio = new.tokens_per_forward / old.tokens_per_forward
        if ratio < 1 - MOST_LOSS:
            wrong.append(
                f"{key}: {new.tokens_per_forward:.2f} tokens per forward, {ratio:.0%} of the committed "
                f"{old.tokens_per_forward:.2f}"
            )
    return wrong


def read(data: Mapping[str, Any], questions: int) -> dict[str, Finding]:
    """The standard for that many questions of each suite."""
    return {key: Finding(**value) for key, value in data[str(questions)].items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} question of each suite instead of {FULL}")
    parser.add_argument("--update", action="store_true", help="write the standard instead of comparing with it")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.update:
        data = {str(n): {key: vars(one) for key, one in measure(n).items()} for n in (QUICK, FULL)}
        STANDARD.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
        return
    questions = QUICK if args.quick else FULL
    found = measure(questions)
    wrong = compare(found, read(json.loads(STANDARD.read_text("utf-8")), questions))
    if args.json:
        print(json.dumps({"cells": {key: vars(one) for key, one in found.items()}, "wrong": wrong}, indent=1))
    else:
        print("\n".join(wrong) or f"{len(found)} cells: no exactness lost, no tokens per forward lost")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
