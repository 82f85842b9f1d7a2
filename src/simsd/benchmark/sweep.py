"""The result of a recipe: the rows of a report in the order of its curves, as data and as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simsd.benchmark.recipes import Curve, Recipe, Value
from simsd.benchmark.report import Column, Report, csv_lines, markdown_facts, markdown_table, tables
from simsd.benchmark.summary import Row
from simsd.text import printable

# The columns of a sweep's table, of those that a report has.
SHOWN = ("tokens/s", "x static", "quartiles", "tokens per forward", "accepted", "right", "95 %", "same text")


@dataclass(frozen=True)
class Series:
    """A curve with its row at each value."""

    curve: Curve
    rows: tuple[Row, ...]

    @property
    def constant(self) -> bool:
        """True if the axis says nothing about it: the same row everywhere."""
        return not self.curve.varies or len({row.cell for row in self.rows}) == 1 < len(self.rows)

    def points(self, values: Sequence[Value]) -> list[tuple[str, Row]]:
        """Its rows with their values; a single one, named "any", where it is constant."""
        return [("any", self.rows[0])] if self.constant else list(zip(map(str, values), self.rows, strict=True))


@dataclass(frozen=True)
class Sweep:
    """A recipe at some values. series: in the order of the recipe's curves; report: all that was measured."""

    recipe: Recipe
    values: list[Value]
    series: list[Series]
    report: Report

    @classmethod
    def of(
        cls, recipe: Recipe, values: Sequence[Value], fixed: Mapping[str, Any], temperature: float, report: Report
    ) -> Sweep:
        """From the report on `recipe.cells(values, fixed, temperature)`."""
        rows = {row.cell: row for row in report.rows}
        series = [
            Series(curve, tuple(rows[recipe.cell(curve, value, fixed, temperature)] for value in values))
            for curve in recipe.curves
        ]
        return cls(recipe, list(values), series, report)

    @property
    def columns(self) -> tuple[Column, ...]:
        """What its table shows of each row."""
        return tuple(column for found in tables(self.report).values() for column in found if column.title in SHOWN)

    @property
    def note(self) -> str:
        """How it was measured, in a line."""
        about, (first, *_) = self.report.about, self.report.rows
        models = " with ".join(name for name in (about["model"], about["draft_model"]) if name)
        repeats = about["settings"]["repeats"]
        number = f"{first.prompts} prompt{'s' * (first.prompts != 1)}, {repeats} repeat{'s' * (repeats != 1)}"
        return printable(f"{models}, {about['dtype']}, {about['device']}; {number}, temperature {first.cell.degrees}")

    @property
    def title(self) -> str:
        return f"{self.recipe.title}. {self.recipe.question}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: the report, what was varied, and which cell is where on each curve."""
        about = {name: getattr(self.recipe, name) for name in ("name", "title", "question", "axis", "option")}
        curves = [{"curve": one.curve.label, "cells": [row.cell.key for row in one.rows]} for one in self.series]
        return {"recipe": about, "values": self.values, "curves": curves, **self.report.to_dict()}

    def csv_text(self) -> str:
        """All figures, one line a point of a curve."""
        return csv_lines(
            [
                {"curve": one.curve.label, "value": value, **row.to_dict()}
                for one in self.series
                for value, row in one.points(self.values)
            ]
        )

    def markdown(self, plot: str) -> str:
        """A page with the question, the plot (the name of its file), the table and the facts."""
        parts = [
            f"# {self.recipe.title}",
            self.recipe.question,
            f"![{self.recipe.title}]({plot})",
            self.markdown_table(),
            markdown_facts(self.report),
        ]
        return "\n\n".join(parts) + "\n"

    def markdown_table(self) -> str:
        """A line for each point of each curve."""
        lines = [([one.curve.label, value], row) for one in self.series for value, row in one.points(self.values)]
        return markdown_table(("curve", self.recipe.axis), self.columns, lines)
