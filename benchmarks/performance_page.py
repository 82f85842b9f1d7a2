"""docs/performance.md from the committed figures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.results_page import SCHEDULES, percent, sweep, table
from simsd.benchmark.cell import Cell

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
SMALL = ("float32", 4)
ITEMSIZE = {"float32": 4, "bfloat16": 2}
LARGE = 1e9  # bytes
DRAFTED = 8  # the window whose rounds are told
RIGHT = "right, "  # before the windows of drafts that are always right
PARTS = ("median", "low", "high")  # of a spread
TEMPLATE = ROOT / "benchmarks" / "performance.md.in"


def steps_table(data: dict[str, Any]) -> str:
    """Of each part: PyTorch's operators over ours, and its share of our forward."""
    found = {(step["part"], step["dtype"], step["rows"]): step for step in data["steps"]}
    kinds = list(dict.fromkeys((dtype, rows) for _, dtype, rows in found))
    lines = [
        [part, *(f"{found[part, dtype, rows]['without_over_with']:.2f}" for dtype, rows in kinds)]
        for part in dict.fromkeys(part for part, *_ in found)
    ]
    return table(["part", *(f"{dtype}, {rows}" for dtype, rows in kinds)], lines, 1)


def forwards_table(data: dict[str, Any]) -> str:
    """Of each model: the plain read as 1, forwards relative to it."""
    lines = []
    for row in data["forwards"]:
        seconds = row["seconds"]
        growth = [f"{seconds[count] / seconds['4']:.2f}" for count in ("8", "20", "64")]
        shares = [percent(row["share_of_bandwidth"][count]) for count in ("4", "8", "20")]
        size = f"{row['bytes'] / 1e9:.2f}"
        lines.append(
            [row["model"], row["dtype"], str(row["threads"]), size, *shares, *growth, f"{operations(row):.0f}"]
        )
    head = ["model", "dtype", "threads", "GB", "4", "8", "20", "8 to 4", "20 to 4", "64 to 4", "GFLOP/s, 20"]
    return table(head, lines, 2)


def operations(row: dict[str, Any], rows: int = 20) -> float:
    """Billions a second in a forward of so many rows: a product and a sum for each weight and row."""
    weights = row["bytes"] / ITEMSIZE[row["dtype"]]
    return 2 * weights * rows / row["seconds"][str(rows)] / 1e9


def of_large(data: dict[str, Any], rows: str, threads: int) -> str:
    """The shares of the memory's speed that the large models' forwards come to."""
    large = [row for row in data["forwards"] if row["threads"] == threads and row["bytes"] > LARGE]
    shares = sorted(row["share_of_bandwidth"][rows] for row in large)
    return f"{100 * shares[0]:.0f} to {100 * shares[-1]:.0f} %"


def draws_table(data: dict[str, Any]) -> str:
    found = {(row["sampler"], row["rows"]): row for row in data["draws"]}
    rows = list(dict.fromkeys(count for _, count in found))
    lines = [
        [
            sampler,
            *(f"{found[sampler, count]['plain_over_built']:.2f}" for count in rows),
            *(percent(found[sampler, count]["share_of_forward"]) for count in rows),
        ]
        for sampler in dict.fromkeys(sampler for sampler, _ in found)
    ]
    head = ["sampling", *(f"x plain, {count}" for count in rows), *(f"of a forward, {count}" for count in rows)]
    return table(head, lines, 1)


def batches_table(data: dict[str, Any]) -> str:
    lines = [
        [
            SCHEDULES[row["schedule"]],
            f"`{row['method']}`",
            str(row["sequences"]),
            f"{row['ratio_to_one']['median']:.2f}",
            f"{row['ratio_to_ordinary']['median']:.2f}",
            "yes" if row["same_text"] else "no",
        ]
        for row in data["batches"]
    ]
    head = ["schedule", "method", "sequences", "x one sequence", "x ordinary", "same text"]
    return table(head, lines, 2)


def methods_table(data: dict[str, Any]) -> str:
    lines = [
        [
            str(row["threads"]),
            row["dtype"],
            SCHEDULES[row["schedule"]],
            f"`{row['method']}`",
            f"{row['ratio_to_schedule']['median']:.2f}",
            f"{row['tokens_per_forward']:.2f}",
            f"{row['query_tokens_per_forward']:.1f}",
            percent(row["ms_per_forward"]["draft"] / sum(row["ms_per_forward"].values())),
            percent(row["same_text"]),
        ]
        for row in data["methods"]
        if row["method"] != "none"
    ]
    head = ["threads", "dtype", "schedule", "method", "x ordinary", "tokens per forward", "rows per forward"]
    return table([*head, "drafting", "same text"], lines, 4)


def windows_table(data: dict[str, Any]) -> str:
    return _windows_table([row for row in data["windows"] if not is_right(row)])


def right_table(data: dict[str, Any]) -> str:
    """Of drafts that are always right."""
    rows = [row for row in data["windows"] if is_right(row)]
    return _windows_table([row | {"window": row["window"].removeprefix(RIGHT)} for row in rows])


def _windows_table(rows: list[dict[str, Any]]) -> str:
    found = {(row["window"], row["dtype"], SCHEDULES[row["schedule"]]): row["ratio"] for row in rows}
    columns = list(dict.fromkeys((dtype, schedule) for _, dtype, schedule in found))
    lines = [
        [window, *("{median:.2f} ({low:.2f}-{high:.2f})".format(**found[(window, *column)]) for column in columns)]
        for window in dict.fromkeys(window for window, *_ in found)
    ]
    return table(["window", *(f"{dtype}, {schedule}" for dtype, schedule in columns)], lines, 1)


def is_right(row: dict[str, Any]) -> bool:
    """Whether a window's drafts were ordinary decoding's own text."""
    return row["window"].startswith(RIGHT)


def plain_table(data: dict[str, Any]) -> str:
    lines = [
        [
            str(row["threads"]),
            SCHEDULES[row["schedule"]],
            f"`{row['peer']}`",
            *(f"{row['ratio'][name]:.2f}" for name in PARTS),
            percent(row["same"]),
        ]
        for row in data["plain_loop"]
        if row["peer"] != "plain"
    ]
    return table(["threads", "schedule", "method", "x plain loop", "from", "to", "same text"], lines, 3)


def aims_table(data: dict[str, Any]) -> str:
    """What was aimed at on two threads, and what is measured on one and on two."""

    def method(schedule: str, threads: int) -> float:
        rows = [row for row in data["methods"] if (row["method"], row["dtype"]) == ("exact", "float32")]
        mine = {(SCHEDULES[row["schedule"]], row["threads"]): row["ratio_to_schedule"]["median"] for row in rows}
        return mine[schedule, threads]

    def plain(peer: str, schedule: str, threads: int) -> float:
        rows = [row for row in data["plain_loop"] if row["peer"] == peer]
        return {(SCHEDULES[row["schedule"]], row["threads"]): row["ratio"]["median"] for row in rows}[schedule, threads]

    aims = [
        ("`exact`, static, to `none`", "3.5", [method("static", n) for n in (1, 2)]),
        ("`exact`, dynamic, to `none`", "2", [method("dynamic", n) for n in (1, 2)]),
        ("`none`, static, to a plain script", "4", [plain("none", "static", n) for n in (1, 2)]),
        ("`none`, dynamic, to a plain script", "4", [plain("none", "dynamic", n) for n in (1, 2)]),
        ("`exact`, static, to a plain script", "10", [plain("exact", "static", n) for n in (1, 2)]),
    ]
    lines = [[name, aim, *(f"{figure:.2f}" for figure in figures)] for name, aim, figures in aims]
    return table(["ratio", "aim", "one thread", "two threads"], lines, 1)


def long_table(data: dict[str, Any]) -> str:
    first = data["long_texts"][0]["seconds"]
    lines = [
        [
            str(row["tokens"]),
            *(f"{row['seconds'][count] / first[count]:.2f}" for count in ("4", "20")),
            f"{row['cache_bytes'] / 2**20:.1f}",
            "yes" if row["cache_bytes"] == row["told_bytes"] else "no",
        ]
        for row in data["long_texts"]
    ]
    return table(["tokens", "forward of 4", "forward of 20", "cache, MiB", "as told"], lines, 0)


def auto_lost(data: dict[str, Any], dtype: str, schedule: str) -> str:
    """What the automatic window loses to the best of the fixed ones and ordinary decoding, in hundredths."""
    mine = [row for row in data["windows"] if (row["dtype"], SCHEDULES[row["schedule"]]) == (dtype, schedule)]
    found = {row["window"]: row["ratio"]["median"] for row in mine if not is_right(row)}
    return str(max(0, round(100 * (1 - found["auto"] / max(1.0, *found.values())))))


def of(cell: Cell) -> dict[str, Any]:
    """What a cell was measured with."""
    return {"method": cell.method, "schedule": cell.schedule, **dict(cell.options)}


def sentences(data: dict[str, Any]) -> dict[str, str]:
    heads, about, own = data["common_heads"], data["about"], data["forwards"][0]["seconds"]
    small = {step["part"]: step["share_of_forward"] for step in data["steps"] if (step["dtype"], step["rows"]) == SMALL}
    drafted = {"num_speculative_tokens": DRAFTED, "method": "exact", "schedule": "low_confidence_static"}
    exact = next(row for row in sweep("gamma").report.rows if drafted.items() <= of(row.cell).items())
    return {
        **{name: str(about[name]) for name in ("questions", "method_questions", "repeats")},
        **{
            f"auto_lost_{dtype}_{schedule}": auto_lost(data, dtype, schedule)
            for dtype in ("float32", "bfloat16")
            for schedule in SCHEDULES.values()
        },
        **{f"large_{rows}_{threads}": of_large(data, rows, threads) for rows in ("8", "20") for threads in (1, 2)},
        "products_share": percent(small["products"]),
        "growth": f"{own['64'] / own['4']:.1f}",
        "drafted": str(DRAFTED),
        "exact_rows": f"{exact.query_tokens_per_forward:.0f}",
        "exact_tokens": f"{exact.tokens_per_forward:.1f}",
        "facts": f"{about['device']}, {about['threads']} thread{'s' * (about['threads'] != 1)}, torch {about['torch']}",
        "head_ratio": f"{heads['new_seconds'] / heads['cached_seconds']:.1f}",
        "head_tokens": str(heads["prompt_tokens"]),
        "head_cached": str(heads["cached_tokens"]),
    }


def render() -> str:
    data = json.loads((RESULTS / "performance.json").read_text("utf-8"))
    tables = {
        "steps": steps_table,
        "forwards": forwards_table,
        "draws": draws_table,
        "batches": batches_table,
        "methods": methods_table,
        "windows": windows_table,
        "right": right_table,
        "plain_loop": plain_table,
        "aims": aims_table,
        "long_texts": long_table,
    }
    parts = {name: make(data) for name, make in tables.items()} | sentences(data)
    return re.sub(r"\{\{ (.*?) \}\}", lambda found: parts[found[1]], TEMPLATE.read_text("utf-8"))


def write_page() -> None:
    PAGE.write_text(render(), "utf-8")
