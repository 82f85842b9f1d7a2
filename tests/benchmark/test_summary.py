from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from scipy.stats import binomtest

from simsd.benchmark.cell import Cell, with_baselines
from simsd.benchmark.page import page
from simsd.benchmark.report import csv_text, markdown
from simsd.benchmark.sample import COUNTED, Sample, digest, growth
from simsd.benchmark.summary import Row, summarise
from simsd.evaluation.statistics import wilson
from simsd.llm import Stats
from tests.benchmark.support import DYNAMIC, EXACT, NONE, known, report, sample

CELLS = [NONE, EXACT]


def by_method(samples: list[Sample], groups: int = 1, cells: list[Cell] = CELLS) -> dict[str, Row]:
    return {row.cell.method: row for row in summarise(cells, samples, groups)}


@pytest.mark.parametrize(
    ("tokens", "seconds"), [((0, 10), (1.0, 1.0)), ((10, 10), (0.0, 1.0)), ((0, 0), (1.0, 1.0)), ((0, 0), (0.0, 0.0))]
)
def test_nothing_is_compared_with_nothing(tokens: tuple[int, int], seconds: tuple[float, float]) -> None:
    cells = with_baselines([EXACT])
    samples = [sample(cell, tokens=tokens[cell == EXACT], seconds=seconds[cell == EXACT]) for cell in cells]
    found = summarise(cells, samples, 1)
    text, lines = markdown(report(found)), list(csv.DictReader(io.StringIO(csv_text(report(found)))))
    for row, line in zip(found, lines, strict=True):
        assert row.ratio_to_static is None and row.ratio_to_schedule is None
        assert (row.tokens_per_second is None) == (seconds[row.cell == EXACT] == 0)
        assert (line["ratio_to_static_median"], line["ratio_to_schedule_high"]) == ("", "")
        assert "ratio_to_static" not in line
        assert Row.from_dict(json.loads(json.dumps(row.to_dict(), allow_nan=False))) == row
    assert "0.00-0.00" not in text
    page(report(found))


def test_repeats_without_a_comparison_do_not_count() -> None:
    # the baseline of the second repeat gave nothing
    samples = [sample(cell, at, tokens=0 if (cell, at) == (NONE, 1) else 10) for cell in CELLS for at in range(3)]
    assert known(by_method(samples)["exact"].ratio_to_static).low == 1.0


def test_ratios_are_taken_within_a_repeat() -> None:
    # the machine is four times slower in the second repeat; the method is twice as fast in both
    samples = [
        sample(cell, repeat, seconds=seconds * slow)
        for repeat, slow in enumerate((1.0, 4.0))
        for cell, seconds in ((NONE, 2.0), (EXACT, 1.0))
    ]
    row = by_method(samples)["exact"]
    assert (known(row.ratio_to_static).low, known(row.ratio_to_static).median, known(row.ratio_to_static).high) == (
        2.0,
        2.0,
        2.0,
    )
    assert known(row.tokens_per_second).median == pytest.approx((10.0 + 2.5) / 2)
    assert known(row.tokens_per_second).low < known(row.tokens_per_second).high


def test_each_schedule_has_its_own_baseline() -> None:
    cells = [NONE, Cell("none", DYNAMIC), Cell("exact", DYNAMIC)]
    samples = [sample(cell, seconds=seconds) for cell, seconds in zip(cells, (4.0, 2.0, 1.0), strict=True)]
    row = summarise(cells, samples, 1)[2]
    assert (known(row.ratio_to_static).median, known(row.ratio_to_schedule).median) == (4.0, 2.0)


def test_prefill_is_no_part_of_the_speed() -> None:
    samples = [sample(NONE, seconds=2.0), sample(EXACT, seconds=3.0, prefill_seconds=2.0, prefill_tokens=50.0)]
    row = by_method(samples)["exact"]
    assert known(row.tokens_per_second).median == 10.0
    assert known(row.ratio_to_static).median == 2.0
    assert row.prefill_tokens_per_second == 25.0
    assert by_method(samples)["none"].prefill_tokens_per_second is None


def test_repeats_that_a_cell_has_not_finished_do_not_count() -> None:
    whole = [sample(cell, 0, group) for cell in CELLS for group in (0, 1)]
    begun = [sample(NONE, 1, 0, tokens=99), sample(NONE, 1, 1, tokens=99), sample(EXACT, 1, 0, tokens=99)]
    rows = by_method([*whole, *begun], groups=2)
    assert {row.tokens for row in rows.values()} == {20.0}
    with pytest.raises(ValueError, match="no repeat is finished"):
        summarise(CELLS, begun, 2)


def test_the_same_text_is_that_of_the_same_prompt_and_repeat() -> None:
    samples = [
        sample(NONE, 0, answers=[("a", True), ("b", True)]),
        sample(NONE, 1, answers=[("c", True), ("d", True)]),
        sample(EXACT, 0, answers=[("a", True), ("x", True)]),
        sample(EXACT, 1, answers=[("d", True), ("d", True)]),
    ]
    rows = by_method(samples)
    assert rows["exact"].same_text == 0.5
    assert rows["none"].same_text == 1.0


def graded(cell: Cell, repeat: int, right: str) -> Sample:
    return sample(cell, repeat, answers=[(str(n), mark == "+") for n, mark in enumerate(right)])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_lost_and_gained_answers_are_tested_as_pairs(temperature: float) -> None:
    cells = [Cell(method, temperature=temperature) for method in ("none", "exact")]
    samples = [
        graded(cell, repeat, right)
        for repeat in (0, 1)
        for cell, right in zip(cells, ("+++++-+-", "+-----++"), strict=True)
    ]
    row = by_method(samples, cells=cells)["exact"]
    times = 1 if temperature == 0 else 2  # greedy repeats are copies of each other
    assert (row.lost, row.gained) == (4 * times, times)
    assert row.p_value == pytest.approx(binomtest(4 * times, 5 * times).pvalue)
    assert row.accuracy == 3 / 8
    assert row.accuracy_interval == wilson(3 / 8, 8)  # a question is one trial, however often it is asked


def test_without_grades_there_is_no_accuracy() -> None:
    row = by_method([sample(cell, answers=[("a", None)]) for cell in CELLS])["exact"]
    assert (row.accuracy, row.accuracy_interval, row.lost, row.gained, row.p_value) == (None,) * 5
    assert row.same_text == 1.0


def test_costs_of_a_forward_and_of_a_repeat() -> None:
    cost: dict[str, Any] = {
        "target_forwards": 5.0, "draft_forwards": 10.0, "query_tokens": 100.0, "drafted_tokens": 8.0,
        "accepted_tokens": 6.0, "draft_seconds": 0.1, "verify_seconds": 0.3, "accept_seconds": 0.05,
    }  # fmt: skip
    samples = [sample(NONE, r) for r in (0, 1)] + [sample(EXACT, r, peak=10 + r, **cost) for r in (0, 1)]
    rows = by_method(samples)
    row = rows["exact"]
    assert (row.tokens, row.tokens_per_forward, row.query_tokens, row.query_tokens_per_forward) == (10, 2, 100, 20)
    assert (row.draft_forwards_per_forward, row.acceptance_rate, row.peak_bytes) == (2.0, 0.75, 11)
    assert row.ms_per_forward == pytest.approx({"draft": 20.0, "verify": 60.0, "accept": 10.0})
    assert row.seconds == pytest.approx({"prefill": 0.0, "draft": 0.1, "verify": 0.3, "accept": 0.05})
    assert rows["none"].acceptance_rate is None


def test_a_row_is_json() -> None:
    cell = Cell.of("exact", DYNAMIC, {"drafter": "self"}, block_length=8)
    found = summarise([cell, cell.baseline, cell.static], [sample(c) for c in (cell, cell.baseline, cell.static)], 1)
    data = json.loads(json.dumps(found[0].to_dict(), allow_nan=False))
    assert (data["method"], data["block_length"], data["options"]) == ("exact", 8, {"drafter": "self"})
    assert data["cell"] == cell.key
    assert data["ratio_to_static"] == {"median": 1.0, "low": 1.0, "high": 1.0}


def test_a_sample_is_the_growth_of_what_was_counted() -> None:
    before, after = Stats(rounds=3, seconds=1.0), Stats(rounds=5, seconds=1.5, query_tokens=7)
    found = growth(before, after)
    assert set(found) == set(COUNTED)
    assert (found["rounds"], found["seconds"], found["query_tokens"], found["draft_forwards"]) == (2, 0.5, 7, 0)
    assert digest([1, 23]) != digest([12, 3])
    assert Sample.from_dict(json.loads(json.dumps(sample(NONE).to_dict()))) == sample(NONE)
