from __future__ import annotations

import csv
import io
import json

import pytest

from simsd.benchmark.recipes import RECIPES
from tests.benchmark.support import known
from tests.benchmark.sweeps import invented

ALL = pytest.mark.parametrize("name", list(RECIPES))


@ALL
def test_each_curve_has_the_row_of_its_cell_at_each_value(name: str) -> None:
    found = invented(name)
    assert [one.curve for one in found.series] == list(found.recipe.curves)
    for one in found.series:
        cells = [found.recipe.cell(one.curve, value, {"block_length": 4}) for value in found.values]
        assert [row.cell for row in one.rows] == cells


def test_what_the_axis_leaves_alone_has_one_point() -> None:
    found = {one.curve.label: one for one in invented("layout").series}
    assert [value for value, _ in found["exact, static"].points(["paired", "unrolled"])] == ["any"]
    assert [value for value, _ in found["draft order, static"].points(["paired", "unrolled"])] == ["paired", "unrolled"]


def test_a_single_value_is_a_point_of_its_own() -> None:
    found = {one.curve.label: one for one in invented("gamma", [4]).series}
    assert [value for value, _ in found["exact, static"].points([4])] == ["4"]


@ALL
def test_tables_list_every_point_with_its_figures(name: str) -> None:
    found = invented(name)
    points = [(one.curve.label, value, row) for one in found.series for value, row in one.points(found.values)]
    lines = list(csv.DictReader(io.StringIO(found.csv_text())))
    assert [(line["curve"], line["value"], line["cell"]) for line in lines] == [
        (label, value, row.cell.key) for label, value, row in points
    ]
    assert [float(line["ratio_to_static_median"]) for line in lines] == [
        known(row.ratio_to_static).median for *_, row in points
    ]
    page = found.markdown("plot.svg")
    assert "![" in page
    assert "(plot.svg)" in page
    rows = [line for line in page.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(points)
    for line, (label, value, row) in zip(rows, points, strict=True):
        assert line.startswith(f"| {label} | {value} | {known(row.tokens_per_second).median:.0f} |")


def test_json_says_which_cell_is_where() -> None:
    found = invented("drafter")
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    keys = {row["cell"] for row in data["rows"]}
    assert (data["recipe"]["name"], data["values"]) == ("drafter", ["model", "hybrid", "self", "lookup"])
    assert [one["curve"] for one in data["curves"]] == [one.curve.label for one in found.series]
    assert all(set(one["cells"]) <= keys and len(one["cells"]) == 4 for one in data["curves"])


def test_the_note_says_what_was_measured() -> None:
    assert invented("gamma").note == "big with small, float32, a machine; 4 prompts, 1 repeat, temperature 0"
