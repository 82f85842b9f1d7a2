from __future__ import annotations

from typing import Any

import pytest

from simsd.benchmark.cell import Cell, check
from simsd.benchmark.recipes import RECIPES, Recipe
from simsd.engine.options import DecodingOptions
from simsd.errors import ConfigError
from tests.benchmark.support import DYNAMIC, STATIC

FIXED = {"block_length": 4}
ALL = pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))


def resolved(cell: Cell) -> DecodingOptions:
    return DecodingOptions(**cell.decoding).resolve(has_draft_model=True)


def test_the_papers_ablations_have_their_values() -> None:
    assert {name: list(recipe.values) for name, recipe in RECIPES.items()} == {
        "gamma": list(range(1, 17)),
        "block-length": [4, 8, 16],
        "position-copy": ["on", "off"],
        "layout": ["paired", "unrolled"],
        "drafter": ["model", "hybrid", "self", "lookup"],
        "threshold": [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99],
    }


@ALL
@pytest.mark.parametrize("has_draft_model", [True, False])
def test_all_cells_can_be_decoded(recipe: Recipe, has_draft_model: bool) -> None:
    for temperature in (0.0, 1.0):
        cells = recipe.cells(recipe.default_values(has_draft_model), FIXED, temperature)
        check(cells, has_draft_model, 4)
        assert len(set(cells)) == len(cells)
        assert {cell.temperature for cell in cells} == {temperature}


@ALL
def test_both_baselines_are_there_and_first(recipe: Recipe) -> None:
    cells = recipe.cells(recipe.values, FIXED)
    assert (cells[0].method, cells[0].schedule) == ("none", STATIC)
    for cell in [cell for cell in cells if cell.method != "none"]:
        assert {cell.baseline, cell.ordinary(STATIC), cell.ordinary(DYNAMIC)} <= set(cells)


@ALL
def test_the_cells_are_those_of_the_curves(recipe: Recipe) -> None:
    cells = set(recipe.cells(recipe.values, FIXED))
    assert cells == {recipe.cell(curve, value, FIXED) for curve in recipe.curves for value in recipe.values}
    assert len({curve.label for curve in recipe.curves}) == len(recipe.curves)


@ALL
def test_a_curve_changes_in_what_the_recipe_varies_and_nothing_else(recipe: Recipe) -> None:
    changed: set[str] = set()
    for curve in recipe.curves:
        found = [resolved(recipe.cell(curve, value, FIXED)) for value in recipe.values]
        for name in DecodingOptions.__dataclass_fields__:
            if len({getattr(options, name) for options in found}) > 1:
                changed.add(name)
        assert all(options.method == curve.method for options in found)
    assert changed == {recipe.option}


def test_layouts_are_compared_under_one_rule_in_one_window() -> None:
    recipe = RECIPES["layout"]
    draft_order = next(curve for curve in recipe.curves if curve.name)
    fixed = {"block_length": 8}
    paired, unrolled = (resolved(recipe.cell(draft_order, value, fixed)) for value in recipe.values)
    assert (paired.layout, unrolled.layout) == ("paired", "unrolled")
    assert paired.acceptance == unrolled.acceptance == "rejection"
    assert paired.num_speculative_tokens == unrolled.num_speculative_tokens == 8
    given = resolved(recipe.cell(draft_order, "paired", {**fixed, "num_speculative_tokens": 3}))
    assert given.num_speculative_tokens == 3
    whole = DecodingOptions(method="exact-draft-order", block_length=8, num_speculative_tokens=8).resolve(True)
    assert (unrolled.layout, unrolled.acceptance, unrolled.drafter) == (whole.layout, whole.acceptance, whole.drafter)


def test_ordinary_decoding_moves_with_the_threshold_and_not_with_the_window() -> None:
    cells = {name: RECIPES[name].cells(RECIPES[name].values, FIXED) for name in ("threshold", "gamma")}
    ordinary = {name: [cell for cell in found if cell.method == "none"] for name, found in cells.items()}
    assert len(ordinary["gamma"]) == 2
    assert len(ordinary["threshold"]) == 1 + len(RECIPES["threshold"].values)


@pytest.mark.parametrize(
    ("name", "word", "value"), [("gamma", "12", 12), ("threshold", "0.5", 0.5), ("layout", "paired", "paired")]
)
def test_values_from_text(name: str, word: str, value: Any) -> None:
    assert RECIPES[name].parse(word) == value


@pytest.mark.parametrize(
    ("name", "word", "says"),
    [
        ("gamma", "1.5", "'1.5'; give numbers such as 1,2,3"),
        ("gamma", "", "''; give numbers"),
        ("threshold", "high", "'high'; give numbers such as 0.5,0.6"),
        ("layout", "square", "'square'; choose one of paired, unrolled"),
        ("drafter", "trajectory", "'trajectory'; choose one of model, hybrid, self, lookup"),
    ],
)
def test_words_that_are_no_values_are_named(name: str, word: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"value of '{name}' is {says}"):
        RECIPES[name].parse(word)


@pytest.mark.parametrize(
    ("name", "value"), [("gamma", 0), ("block-length", -4), ("threshold", float("nan")), ("threshold", 1.5)]
)
def test_values_out_of_range_are_refused_before_anything_runs(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=RECIPES[name].option):
        check(RECIPES[name].cells([value], FIXED), True, 4)
