"""Sweeps with chosen figures: every cell has its own."""

from __future__ import annotations

from collections.abc import Sequence

from simsd.benchmark.recipes import RECIPES, Value
from simsd.benchmark.summary import summarise
from simsd.benchmark.sweep import Sweep
from tests.benchmark.support import report, sample


def invented(name: str, values: Sequence[Value] = (), *, graded: bool = True) -> Sweep:
    """A recipe over four questions and three repeats; each cell has its own speed, acceptance and answers.

    Drafter "lookup" drafts nothing.
    """
    recipe = RECIPES[name]
    values = values or recipe.values
    cells = recipe.cells(values, {"block_length": 4})
    samples = [
        sample(
            cell,
            repeat,
            answers=[(f"{cell.key}{q}" if q < at % 4 else "same", q < at % 5 if graded else None) for q in range(4)],
            seconds=1 / (1 + at) + 0.01 * repeat,
            target_forwards=1 + at,
            drafted_tokens=0 if cell.method == "none" or ("drafter", "lookup") in cell.options else 100,
            accepted_tokens=at,
        )
        for at, cell in enumerate(cells)
        for repeat in range(3)
    ]
    return Sweep.of(recipe, values, {"block_length": 4}, 0.0, report(summarise(cells, samples, 1)))
