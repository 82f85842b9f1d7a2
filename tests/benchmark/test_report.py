from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from simsd.benchmark.cell import Cell, matrix
from simsd.benchmark.page import page
from simsd.benchmark.report import TABLES, Report, csv_text, markdown, tables
from simsd.benchmark.summary import summarise
from tests.benchmark.support import EXACT, STATIC, known, report, rows, sample

ROOT = Path(__file__).parents[2]
TWO = [Cell.of("exact", STATIC, {"num_speculative_tokens": window}, block_length=8) for window in (4, 8)]


def table(text: str, title: str) -> list[list[str]]:
    """The rows of one Markdown table, its head first."""
    body = text.split(f"## {title}\n\n")[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in body if "---" not in line]


def test_each_cell_is_a_row_of_each_table_under_its_place() -> None:
    text = markdown(report(rows(*TWO)))
    for title in TABLES:
        head, *body = table(text, title)
        assert head[:2] == ["schedule", "method"]
        assert {len(line) for line in body} == {len(head)}
        assert [line[:2] for line in body] == [
            ["static, B = 8, T = 0", "none"],
            ["static, B = 8, T = 0", "exact window=4"],
            ["static, B = 8, T = 0", "exact window=8"],
            ["dynamic, B = 8, T = 0", "none"],
        ]


def test_the_figures_are_those_of_the_row() -> None:
    cells = matrix(["exact"], schedules=[STATIC])
    static, exact, dynamic = cells
    samples = [
        sample(static, seconds=2.0, peak=3_000_000),
        sample(dynamic),
        sample(exact, answers=[("b", False)], drafted_tokens=8.0, accepted_tokens=6.0, query_tokens=24.0,
               draft_seconds=0.5, verify_seconds=0.25, target_forwards=4.0, prefill_tokens=9, prefill_seconds=0.2),
    ]  # fmt: skip
    text = markdown(report(summarise(cells, samples, 1)))
    speed, cost, answers = (
        dict(zip(t[0], t[2], strict=True)) for t in (table(text, n) for n in ("Speed", "Cost", "Text"))
    )
    assert (speed["tokens/s"], speed["x static"], speed["quartiles"]) == ("12", "2.50", "2.50-2.50")
    assert (speed["tokens per forward"], speed["accepted"]) == ("2.50", "75%")
    assert (cost["rows per forward"], cost["draft ms"], cost["verify ms"]) == ("6.0", "125.00", "62.50")
    assert cost["prefill tokens/s"] == "45"
    assert (answers["right"], answers["same text"], answers["lost"], answers["p"]) == ("0%", "0%", "1", "1.000")
    first = dict(zip(table(text, "Text")[0], table(text, "Text")[1], strict=True))
    assert (first["right"], first["lost"], first["p"]) == ("100%", "-", "-")
    assert table(text, "Cost")[1][-1] == "3"


def test_without_questions_nothing_is_said_of_grades() -> None:
    found = report(rows(EXACT, answers=[("a", None)]))
    assert [column.title for column in tables(found)["Text"]] == ["same text"]
    assert "right" not in markdown(found)


def test_what_all_cells_share_stands_in_the_facts() -> None:
    facts = report(rows(TWO[0]), resumed=True, draft_model=None, threads=2).facts
    assert facts["options of all cells"] == "window 4"
    assert "no draft model" in facts["model"]
    assert "2 CPU threads" in facts["device"]
    assert "tensor parallel" not in facts["device"]
    assert report(rows(EXACT), tensor_parallel_size=2).facts["device"].endswith(", tensor parallel over 2 ranks")
    assert "resumed" in facts["date"]
    assert facts["settings"] == "max tokens 16, repeats 1, batch size 1, seed 0"
    assert "options of all cells" not in report(rows(EXACT)).facts


def test_int8_weights_and_a_draft_model_elsewhere_are_told() -> None:
    facts = report(rows(EXACT), quantize="int8-draft", draft_device="cuda:1").facts
    assert facts["model"].endswith(", float32, quantize int8-draft")
    assert facts["device"].endswith(", draft model on cuda:1")
    plain = report(rows(EXACT), quantize="none").facts
    assert "quantize" not in plain["model"] and "draft model" not in plain["device"]


def test_csv_holds_every_figure() -> None:
    found = rows(*TWO)
    lines = list(csv.DictReader(io.StringIO(csv_text(report(found)))))
    assert [line["cell"] for line in lines] == [row.cell.key for row in found]
    line, row = lines[1], found[1]
    assert line["options"] == "num_speculative_tokens=4"
    assert float(line["ratio_to_static_high"]) == known(row.ratio_to_static).high
    assert float(line["ms_per_forward_verify"]) == row.ms_per_forward["verify"]
    assert row.accuracy_interval is not None
    assert float(line["accuracy_interval_low"]) == row.accuracy_interval[0]
    assert line["acceptance_rate"] == ""
    assert set(row.to_dict()) <= {
        re.sub(r"_(median|low|high|draft|verify|accept|prefill)$", "", n) for n in line
    } | set(line)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("a|b", "a&#124;b"),
        ("a\n\n# head", "a&#92;n&#92;n# head"),
        ("<img src=x onerror=alert(1)>", "&#60;img src=x onerror=alert(1)&#62;"),
        ("[text](javascript:x)", "&#91;text&#93;(javascript:x)"),
        ("a\\|b", "a&#92;&#124;b"),
        ("&lt;", "&#38;lt;"),
        ("`*a*` _b_ my_model", "&#96;&#42;a&#42;&#96; &#95;b&#95; my_model"),
        ("\x1b[31m\udcff", "&#92;x1b&#91;31m&#92;udcff"),
        ("~~$x$~~", "&#126;&#126;&#36;x&#36;&#126;&#126;"),
    ],
    ids=ascii,
)
@pytest.mark.parametrize("where", ["workload", "model", "draft_model", "device"])
def test_names_stand_for_themselves_in_markdown_and_on_the_page(where: str, name: str, written: str) -> None:
    found = report(rows(EXACT), **{where: {name: 3} if where == "workload" else name})
    (line,) = (line for line in markdown(found).splitlines() if written in line)
    assert line.startswith("- ")
    shown = page(found)
    assert "<img" not in shown
    shown.encode()


def test_the_report_is_json() -> None:
    data = json.loads(json.dumps(report(rows(*TWO)).to_dict(), allow_nan=False))
    assert [row["label"] for row in data["rows"]] == ["none", "exact window=4", "exact window=8", "none"]
    assert data["about"]["model"] == "big"


def test_a_report_is_read_back_from_its_json() -> None:
    found = report(rows(*TWO))
    assert Report.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.parametrize("title", sorted(TABLES))
def test_the_documentation_explains_every_column(title: str) -> None:
    page = (ROOT / "docs" / "how-to" / "benchmark.md").read_text("utf-8")
    for column in TABLES[title]:
        assert re.search(rf"^\|[^|]*`{re.escape(column.title)}`", page, re.MULTILINE), column.title
