"""The result of a run as data, and as tables: one list of columns for the terminal, Markdown and the page."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any

from simsd.benchmark.cell import SHORT, labels, shared
from simsd.benchmark.summary import SPREADS, Row
from simsd.evaluation.statistics import Spread
from simsd.text import printable

# Settings that say nothing.
NEUTRAL = {"top_k": 0, "top_p": 1.0, "ignore_eos": False}


@dataclass(frozen=True)
class Report:
    """about: what was run, on what and when (the keys of `run.identity`, "resumed" and "date"); rows: one a cell."""

    about: dict[str, Any]
    rows: list[Row]

    def to_dict(self) -> dict[str, Any]:
        return {"about": self.about, "rows": [row.to_dict() for row in self.rows]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """The report that `to_dict` wrote."""
        return cls(data["about"], [Row.from_dict(row) for row in data["rows"]])

    @property
    def places(self) -> list[tuple[str, list[Row]]]:
        """The rows of each place of the matrix, with the place's name."""
        return [(rows[0].cell.place_name, rows) for rows in _runs(self.rows)]

    @property
    def labels(self) -> dict[str, str]:
        """Cell key -> its name in tables."""
        return {cell.key: label for cell, label in labels([row.cell for row in self.rows]).items()}

    @property
    def facts(self) -> dict[str, str]:
        """What a reader must know beside the tables, in words."""
        about = self.about
        settings = [(name, value) for name, value in about["settings"].items() if NEUTRAL.get(name) != value]
        draft = f", draft model {about['draft_model']}" if about["draft_model"] else ", no draft model"
        sources = ", ".join(f"{number} {source}" for source, number in about["workload"].items())
        rounded = f", quantize {about['quantize']}" if about.get("quantize", "none") != "none" else ""
        apart = f", draft model on {about['draft_device']}" if about.get("draft_device") else ""
        own = about.get("kernels") if about.get("quantize") != "int8" else None
        kernels = f", kernels: {own}" if own else ""
        size = about.get("tensor_parallel_size", 1)
        ranks = f", tensor parallel over {size} ranks" if size > 1 else ""
        options = shared([row.cell for row in self.rows])
        found = {
            "model": f"{about['model']}{draft}, block length {about['block_length']}, {about['dtype']}{rounded}",
            "device": f"{about['device']}, {about['threads']} CPU thread{_s(about['threads'])}{kernels}{apart}{ranks}",
            "prompts": f"{sources} (fingerprint {about['fingerprint']})",
            "settings": ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings),
            "options of all cells": ", ".join(f"{SHORT.get(name, name)} {value}" for name, value in options.items()),
            "versions": f"simsd {about['simsd']}, torch {about['torch']}",
            "date": about["date"] + (", resumed from kept samples" if about["resumed"] else ""),
        }
        return {name: printable(text) for name, text in found.items() if text}


def _runs(rows: Sequence[Row]) -> list[list[Row]]:
    return [list(found) for _, found in groupby(rows, key=lambda row: row.cell.place)]


def _s(count: int) -> str:
    return "" if count == 1 else "s"


# ---------------------------------------------------------------------- columns
@dataclass(frozen=True)
class Column:
    """title: its head; meaning: one sentence without a full stop; show: what it says of a row."""

    title: str
    meaning: str
    show: Callable[[Row], str]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _median(spread: Spread | None, digits: int = 0) -> str:
    return _number(None if spread is None else spread.median, digits)


def _range(spread: Spread | None, digits: int) -> str:
    return "-" if spread is None else f"{spread.low:.{digits}f}-{spread.high:.{digits}f}"


def _interval(row: Row) -> str:
    return "-" if row.accuracy_interval is None else "-".join(f"{bound * 100:.0f}" for bound in row.accuracy_interval)


def _change(row: Row, value: float | None, digits: int = 0) -> str:
    """Against ordinary decoding: nothing for that itself."""
    return _number(None if row.cell == row.cell.baseline else value, digits)


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


TABLES: Mapping[str, tuple[Column, ...]] = {
    "Speed": (
        Column(
            "tokens/s",
            "tokens of the final text per second of decoding, prefill apart; the median of the repeats",
            lambda row: _median(row.tokens_per_second),
        ),
        Column(
            "x static",
            "speed relative to ordinary decoding on the static schedule in the same repeat; median",
            lambda row: _median(row.ratio_to_static, 2),
        ),
        Column(
            "quartiles",
            "first and third quartile of 'x static' over the repeats",
            lambda r: _range(r.ratio_to_static, 2),
        ),
        Column(
            "x same schedule",
            "speed relative to ordinary decoding on the cell's own schedule; median",
            lambda row: _median(row.ratio_to_schedule, 2),
        ),
        Column(
            "tokens per forward",
            "tokens of the final text per forward of the target, prefill apart",
            lambda row: _number(row.tokens_per_forward, 2),
        ),
        Column("accepted", "drafted tokens that were kept", lambda row: _share(row.acceptance_rate)),
    ),
    "Text": (
        Column("right", "answers that the grader finds right", lambda row: _share(row.accuracy)),
        Column("95 %", "Wilson interval of 'right' in percent, each question counted once", _interval),
        Column(
            "same text",
            "answers whose ids are those of ordinary decoding on the same schedule with the same seed",
            lambda row: _share(row.same_text),
        ),
        Column("lost", "answers right in ordinary decoding and wrong here", lambda row: _change(row, row.lost)),
        Column("gained", "answers wrong in ordinary decoding and right here", lambda row: _change(row, row.gained)),
        Column("p", "exact McNemar test of 'lost' against 'gained'", lambda row: _change(row, row.p_value, 3)),
    ),
    "Cost": (
        Column(
            "rows per forward",
            "query tokens per forward of the target: what a check costs",
            lambda row: _number(row.query_tokens_per_forward, 1),
        ),
        Column(
            "drafts per forward",
            "forwards of the draft model per forward of the target",
            lambda row: _number(row.draft_forwards_per_forward, 2),
        ),
        Column(
            "draft ms",
            "milliseconds per forward of the target that drafting takes",
            lambda row: _number(row.ms_per_forward["draft"], 2),
        ),
        Column(
            "verify ms",
            "milliseconds that the target's forward takes",
            lambda row: _number(row.ms_per_forward["verify"], 2),
        ),
        Column(
            "accept ms",
            "milliseconds per forward that acceptance takes",
            lambda row: _number(row.ms_per_forward["accept"], 2),
        ),
        Column(
            "prefill tokens/s",
            "tokens of the prompts per second of prefill, the draft model's included",
            lambda row: _number(row.prefill_tokens_per_second),
        ),
        Column(
            "peak MB",
            "most memory at one time: of the GPU on CUDA, of the whole process elsewhere",
            lambda row: _number(row.peak_bytes / 1e6),
        ),
    ),
}


def tables(report: Report) -> dict[str, tuple[Column, ...]]:
    """The tables that say something: no grades without questions."""
    graded = any(row.accuracy is not None for row in report.rows)
    text = tuple(column for column in TABLES["Text"] if graded or column.title == "same text")
    return {**TABLES, "Text": text}


# ---------------------------------------------------------------------- as text
def markdown(report: Report) -> str:
    """The facts and the tables as Markdown."""
    lines = [([place, report.labels[row.cell.key]], row) for place, rows in report.places for row in rows]
    parts = [markdown_facts(report)]
    for title, columns in tables(report).items():
        parts += [f"## {title}", markdown_table(("schedule", "method"), columns, lines)]
    return "\n\n".join(parts) + "\n"


def markdown_facts(report: Report) -> str:
    """The facts as a list."""
    return "\n".join(f"- {name}: {_cell(text)}" for name, text in report.facts.items())


def markdown_table(heads: Sequence[str], columns: Sequence[Column], lines: Sequence[tuple[Sequence[str], Row]]) -> str:
    """A table with a line for each row; heads: of the cells in front, which each line brings along."""
    head = _line([*heads, *(column.title for column in columns)])
    rule = _line([*("---" for _ in heads), *("---:" for _ in columns)])
    body = [_line([*front, *(column.show(row) for column in columns)]) for front, row in lines]
    return "\n".join([head, rule, *body])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


# What Markdown or HTML would take for its own; an underscore only where it is not inside a word.
_SPECIAL = re.compile(r"[\\`*<>&|\[\]~$]|(?<!\w)_|_(?!\w)")


def _cell(text: str) -> str:
    """Text that shows as itself, and cannot end a table's cell or line. Entities mean the same everywhere."""
    return _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", " ".join(printable(text).split()))


def csv_text(report: Report) -> str:
    """All figures of all rows, one line a cell; nested ones are joined as in `ratio_to_static_median`."""
    return csv_lines([row.to_dict() for row in report.rows])


def csv_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """Objects as CSV with a head; nested figures are joined as in `ratio_to_static_median`."""
    flat = [_flat(row) for row in rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(name for row in flat for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _flat(data: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in data.items():
        if name == "options":
            found[name] = " ".join(f"{option}={setting}" for option, setting in value.items())
        elif isinstance(value, Mapping):
            found |= {f"{name}_{key}": inner for key, inner in value.items()}
        elif value is None and name in SPREADS:
            found |= {f"{name}_{field.name}": None for field in fields(Spread)}
        elif isinstance(value, tuple | list):
            found |= dict(zip((f"{name}_low", f"{name}_high"), value, strict=True))
        else:
            found[name] = value
    return found
