"""docs/results.md from the committed figures: tables, plots, and the sentences that the figures bear out."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simsd.benchmark import plots
from simsd.benchmark.curves import figure
from simsd.benchmark.recipes import RECIPES
from simsd.benchmark.report import TABLES, Report
from simsd.benchmark.summary import Row
from simsd.benchmark.sweep import Sweep
from simsd.evaluation.statistics import Spread

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
ASSETS = ROOT / "docs" / "assets" / "results"
PAGE = ROOT / "docs" / "results.md"
TEMPLATE = ROOT / "benchmarks" / "results.md.in"
SUITES = ("math", "code", "trivia", "choice", "chat")
METHODS = ("none", "simsd", "exact-draft-order", "exact")
SCHEDULES = {"low_confidence_static": "static", "low_confidence_dynamic": "dynamic"}

Text = dict[str, Any]


def read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def sweep(name: str) -> Sweep:
    """A committed ablation."""
    data = read(f"sweep-{name}")
    report = Report.from_dict(data)
    return Sweep.of(RECIPES[name], data["values"], {"block_length": report.about["block_length"]}, 0.0, report)


def draw() -> None:
    """The plots, from the committed figures."""
    ASSETS.mkdir(parents=True, exist_ok=True)
    for name in RECIPES:
        plots.save(figure(sweep(name)), ASSETS / name)
    rows = Report.from_dict(read("speed")).rows
    short = [row for row in rows if row.cell.block_length == 4 and row.cell.temperature == 0]
    plots.save(plots.speed(short), ASSETS / "speed")
    plots.save(plots.tokens_per_forward(short), ASSETS / "forward")


# ---------------------------------------------------------------------- tables
def table(head: Sequence[str], lines: Sequence[Sequence[str]], left: int) -> str:
    """Markdown; the first `left` columns hold words, the others numbers."""
    rule = ["---" if at < left else "---:" for at in range(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *lines])


def percent(share: float | None, digits: int = 0) -> str:
    return "-" if share is None else f"{share:.{digits}%}"


def p_value(p: float | None) -> str:
    return "-" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


RATIOS = [column for column in TABLES["Speed"] if column.title in ("x static", "quartiles", "x same schedule")]


def speed_table(rows: Sequence[Row], temperature: float) -> str:
    """Costs and gains of every cell at one temperature."""
    lines = [
        [
            str(row.cell.block_length),
            SCHEDULES[row.cell.schedule],
            f"`{row.cell.method}`",
            f"{row.tokens_per_forward:.2f}",
            f"{row.query_tokens_per_forward:.1f}",
            percent(row.acceptance_rate),
            *(column.show(row) for column in RATIOS),
        ]
        for row in rows
        if row.cell.temperature == temperature
    ]
    head = ["B", "schedule", "method", "tokens per forward", "rows per forward", "accepted", "x static", "quartiles"]
    return table([*head, "x same schedule"], lines, 3)


def text_table(cells: Sequence[Text], places: dict[str, tuple[int, str, str, float]], temperature: float) -> str:
    """Accuracy and agreement of every cell at one temperature, all suites together."""
    lines = []
    for cell in cells:
        length, schedule, method, warm = places[cell["cell"]]
        if warm != temperature:
            continue
        low, high = cell["accuracy_interval"]
        own = method == "none"
        lines.append(
            [
                str(length),
                SCHEDULES[schedule],
                f"`{method}`",
                percent(cell["accuracy"], 1),
                f"{100 * low:.1f}-{100 * high:.1f}",
                percent(cell["same_text"], 1),
                "-" if own else str(cell["lost"]),
                "-" if own else str(cell["gained"]),
                "-" if own else p_value(cell["p_value"]),
            ]
        )
    return table(["B", "schedule", "method", "right", "95 %", "same text", "lost", "gained", "p"], lines, 3)


def suite_table(suites: dict[str, list[Text]], places: dict[str, tuple[int, str, str, float]]) -> str:
    """Accuracy of each suite, greedy, at block length 4."""
    lines = []
    for schedule in SCHEDULES:
        for method in METHODS:
            key = next(key for key, place in places.items() if place == (4, schedule, method, 0.0))
            found = [next(cell for cell in suites[name] if cell["cell"] == key) for name in SUITES]
            shares = [
                f"{percent(c['accuracy'])} ({'-'.join(f'{100 * b:.0f}' for b in c['accuracy_interval'])})"
                for c in found
            ]
            lines.append([SCHEDULES[schedule], f"`{method}`", *shares])
    head = [f"{name} ({suites[name][0]['prompts']})" for name in SUITES]
    return table(["schedule", "method", *head], lines, 2)


# ---------------------------------------------------------------------- sentences
def against_ordinary(cells: Sequence[Text], places: dict[str, tuple[int, str, str, float]], method: str) -> str:
    """What a method's text lost against ordinary decoding, over all greedy cells. No test: these are six times the same
    questions."""
    mine = [cell for cell in cells if places[cell["cell"]][2] == method and places[cell["cell"]][3] == 0]
    lost, gained = sum(cell["lost"] for cell in mine), sum(cell["gained"] for cell in mine)
    pairs = sum(cell["prompts"] for cell in mine)
    same = sum(cell["same_text"] * cell["prompts"] for cell in mine) / pairs
    return (
        f"`{method}`: {percent(same, 1)} of {pairs} texts are ordinary decoding's; {lost} answers lost and "
        f"{gained} gained"
    )


def text_figure(cell: Text, name: str) -> str:
    """One figure of a cell's text, for a sentence: a share, a count or a p value."""
    if name == "p_value":
        return p_value(cell[name])
    return str(cell[name]) if name in ("lost", "gained", "prompts") else percent(cell[name])


def best_window(found: Sweep, method: str, schedule: str) -> str:
    """The fastest window of an ablation, and what it came to beside ordinary decoding on the same schedule."""
    rows = [
        (row.ratio_to_schedule.median, dict(row.cell.options)["num_speculative_tokens"])
        for row in found.report.rows
        if (row.cell.method, SCHEDULES[row.cell.schedule]) == (method, schedule) and row.ratio_to_schedule
    ]
    ratio, window = max(rows)
    return f"{ratio:.2f} (a window of {window})"


def speed_figure(row: Row, name: str) -> str:
    """One figure of a cell's speed, for a sentence."""
    value = getattr(row, name)
    return f"{value.median:.2f}" if isinstance(value, Spread) else f"{value:.1f}"


def render() -> str:
    """The page: the template with its parts filled in.

    Tables have names. A figure in a sentence is named by its cell: {{ text simsd static 8 0 lost }}.
    """
    speed, text = Report.from_dict(read("speed")), read("text")
    rows = speed.rows
    places = {
        row.cell.key: (row.cell.block_length or 0, row.cell.schedule, row.cell.method, row.cell.temperature)
        for row in rows
    }
    cells = text["all"]
    at_text = {places[cell["cell"]]: cell for cell in cells}
    at_speed = {places[row.cell.key]: row for row in rows}
    sweeps = {name: sweep(name) for name in RECIPES}
    parts = {
        "speed_facts": facts(speed.about, rows[0].prompts),
        "text_facts": facts(text["about"], cells[0]["prompts"]),
        "sweep_facts": facts(sweeps["gamma"].report.about, sweeps["gamma"].report.rows[0].prompts),
        "speed_greedy": speed_table(rows, 0.0),
        "speed_sampled": speed_table(rows, 1.0),
        "text_greedy": text_table(cells, places, 0.0),
        "text_sampled": text_table(cells, places, 1.0),
        "suites": suite_table(text["suites"], places),
        "best_static": best_window(sweeps["gamma"], "exact", "static"),
        "best_dynamic": best_window(sweeps["gamma"], "exact", "dynamic"),
        "agreement": "\n".join(f"- {against_ordinary(cells, places, method)}" for method in METHODS[1:]),
        **{f"sweep_{name.replace('-', '_')}": found.markdown_table() for name, found in sweeps.items()},
    }

    def part(found: re.Match[str]) -> str:
        words = found[1].split()
        if words[0] not in ("text", "speed"):
            return parts[words[0]]
        kind, method, schedule, length, temperature, name = words
        long = next(key for key, short in SCHEDULES.items() if short == schedule)
        place = (int(length), long, method, float(temperature))
        return text_figure(at_text[place], name) if kind == "text" else speed_figure(at_speed[place], name)

    return re.sub(r"\{\{ (.*?) \}\}", part, TEMPLATE.read_text("utf-8"))


def facts(about: dict[str, Any], prompts: int) -> str:
    settings = about["settings"]
    repeats = settings["repeats"]
    return (
        f"{about['device']}, {prompts} questions, {repeats} repeat{'s' * (repeats != 1)}, "
        f"batch {settings['batch_size']}, at most {settings['max_tokens']} tokens, {about['dtype']}, "
        f"{about['threads']} CPU thread{'s' * (about['threads'] != 1)}, torch {about['torch']}, simsd {about['simsd']}"
    )


def write_page() -> None:
    draw()
    PAGE.write_text(render(), "utf-8")
