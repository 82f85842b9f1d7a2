"""The plots of a sweep: one panel a figure of merit, one line (or group of bars) a way to decode."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simsd.benchmark.plots import COLOURS, GRID, INK, SIZE, blank, legend, style
from simsd.benchmark.recipes import Curve
from simsd.benchmark.summary import Row
from simsd.benchmark.sweep import Series, Sweep

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

MARKERS = {"none": "D", "simsd": "o", "exact": "s", "exact-draft-order": "^"}
DASHES = {"static": "-", "dynamic": (0, (4, 2))}
SHIFT, BARS = 0.36, 0.8  # what curves, and what groups of bars, take of the room between two values
NEAR, SPACE = 0.008, 2.4  # of a panel's height: lines so near are set apart, by so many points
MOST_WHISKERS = 24  # in a panel where they are long; more are drawn as a band for each curve
LEGEND = """Speed: decoding, prefill apart, relative to ordinary decoding
on the static schedule at the same block length.
{marks}: of accuracy the 95 % Wilson interval,
of speed the quartiles of the repeats."""
APART = "Lines of equal height stand a line's width apart."
AUTOMATIC = """The window of exact is automatic and follows the clock,
so its tokens per forward vary from point to point."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Panel:
    """value, interval: of a row; None where there is none, as for the acceptance of ordinary decoding.

    wide: the intervals are long, and those of several curves overlap.
    """

    title: str
    value: Callable[[Row], float | None]
    interval: Callable[[Row], Interval | None] = lambda row: None
    percent: bool = False
    wide: bool = False


PANELS = (
    Panel("Acceptance rate", lambda row: row.acceptance_rate, percent=True),
    Panel("Accuracy", lambda row: row.accuracy, lambda row: row.accuracy_interval, percent=True, wide=True),
    Panel("Same text as ordinary decoding", lambda row: row.same_text, percent=True),
    Panel("Tokens per forward of the target", lambda row: row.tokens_per_forward),
    Panel(
        "Speed, ordinary static decoding = 1",
        lambda row: None if row.ratio_to_static is None else row.ratio_to_static.median,
        lambda row: None if row.ratio_to_static is None else (row.ratio_to_static.low, row.ratio_to_static.high),
    ),
)


def figure(sweep: Sweep) -> Figure:
    """All panels that have something to show, and the legend beside them. Raises ConfigError without matplotlib."""
    rows = sweep.report.rows
    panels = [panel for panel in PANELS if any(panel.value(row) is not None for row in rows)]
    drawn, axes = blank(11, 6.4, rows=2, columns=3)
    for place, panel in zip(axes, panels, strict=False):
        _draw(place, panel, sweep)
    for place in axes[len(panels) :]:
        place.set_axis_off()
    _key(axes[len(panels)], sweep)
    # a name may hold dollars, which are no formula
    drawn.suptitle(f"{sweep.title}\n{sweep.note}", x=0.01, ha="left", fontsize=SIZE + 1, color=INK, parse_math=False)
    return drawn


def _draw(axes: Axes, panel: Panel, sweep: Sweep) -> None:
    recipe, values = sweep.recipe, sweep.values
    shown = [one for one in sweep.series if any(panel.value(row) is not None for row in one.rows)]
    level = [one for one in shown if one.constant]
    moving = [one for one in shown if not one.constant]
    edge, gap = len(values) - 0.5, 0.02 * len(values)
    lines = [_level(axes, panel, one, edge + index * gap) for index, one in enumerate(level, start=1)]
    curves = [_line(axes, panel, one, index, len(moving)) for index, one in enumerate(moving) if recipe.ordered]
    for index, one in enumerate(moving if not recipe.ordered else ()):
        _group(axes, panel, one, index, len(moving))
    axes.set_xticks(range(len(values)), [str(value) for value in values])
    axes.set_xlim(-0.5, edge + (len(level) + 1) * gap)
    if panel.percent:
        from matplotlib.ticker import PercentFormatter

        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_ylim(0, 1.04)
    else:
        axes.set_ylim(bottom=0)
    for those in (lines, curves):
        _spread(axes, those)
    style(axes, title=panel.title, xlabel=recipe.axis)


def _level(axes: Axes, panel: Panel, one: Series, edge: float) -> Line2D:
    """What the axis leaves alone is a line from side to side, with its interval at the right edge."""
    value = _value(panel, one.rows[0])
    line = axes.axhline(value, label=one.curve.label, linewidth=1.4, clip_on=False, **_stroke(one.curve))
    _whisker(axes, edge, value, panel.interval(one.rows[0]), color=_colour(one.curve), linewidth=1.4)
    return line


def _spread(axes: Axes, lines: Sequence[Line2D]) -> None:
    """Lines that would hide each other stand a line's width above each other, in the middle their own height."""
    from matplotlib.transforms import ScaledTranslation

    low, high = axes.get_ylim()
    for alike in _alike(lines, NEAR * (high - low)):
        for index, line in enumerate(alike):
            points = SPACE * (index - (len(alike) - 1) / 2)
            shift = ScaledTranslation(0, points / 72, axes.figure.dpi_scale_trans)
            line.set_transform(line.get_transform() + shift)


def _alike(lines: Sequence[Line2D], near: float) -> list[list[Line2D]]:
    """The lines in groups, in each of which one is nowhere further than that from the next."""
    groups: list[list[Line2D]] = []
    for line in sorted(lines, key=_heights):
        for group in groups:
            if np.allclose(_heights(group[-1]), _heights(line), rtol=0, atol=near, equal_nan=True):
                group.append(line)
                break
        else:
            groups.append([line])
    return groups


def _heights(line: Line2D) -> list[float]:
    return np.asarray(line.get_ydata(), dtype=float).tolist()


def _line(axes: Axes, panel: Panel, one: Series, index: int, count: int) -> Line2D:
    """Curves stand a little beside each other: equal ones are all seen."""
    x = [at + SHIFT * (index - (count - 1) / 2) / count for at in range(len(one.rows))]
    y = [_value(panel, row) for row in one.rows]
    (line,) = axes.plot(x, y, label=one.curve.label, linewidth=1.4, **_stroke(one.curve), **_mark(one.curve))
    intervals = [panel.interval(row) for row in one.rows]
    if panel.wide and count * len(x) > MOST_WHISKERS:
        low, high = zip(*((math.nan, math.nan) if found is None else found for found in intervals), strict=True)
        axes.fill_between(x, low, high, color=_colour(one.curve), alpha=0.08, linewidth=0)
        return line
    for at, height, interval in zip(x, y, intervals, strict=True):
        _whisker(axes, at, height, interval, color=_colour(one.curve), alpha=0.55, linewidth=0.9)
    return line


def _group(axes: Axes, panel: Panel, one: Series, index: int, count: int) -> None:
    width = BARS / count
    x = [at + (index - (count - 1) / 2) * width for at in range(len(one.rows))]
    heights = [_value(panel, row) for row in one.rows]
    axes.bar(x, heights, width * 0.92, label=one.curve.label, **_fill(one.curve))
    for at, height, row in zip(x, heights, one.rows, strict=True):
        if height == 0:  # there is no bar to be seen
            axes.annotate("0", (at, 0), (-3, 2), textcoords="offset points", ha="right", fontsize=SIZE - 1, color=INK)
        _whisker(axes, at, height, panel.interval(row), color=INK, capsize=2.5, linewidth=1)


def _whisker(axes: Axes, at: float, height: float, interval: Interval | None, **looks: Any) -> None:
    if interval is not None:
        low, high = interval
        axes.errorbar(at, height, yerr=[[max(0.0, height - low)], [max(0.0, high - height)]], fmt="none", **looks)


def _key(axes: Axes, sweep: Sweep) -> None:
    handles = [_handle(one, sweep.recipe.ordered) for one in sweep.series]
    names = [one.curve.label for one in sweep.series]
    legend(axes, handles=handles, labels=names, loc="upper left", handlelength=3.2)
    axes.text(0.03, -0.15, _explained(sweep), fontsize=SIZE - 1, color=INK, transform=axes.transAxes, va="bottom")


def _explained(sweep: Sweep) -> str:
    """What the marks mean that are in this figure."""
    moving = [one for one in sweep.series if not one.constant]
    banded = sweep.recipe.ordered and len(moving) * len(sweep.values) > MOST_WHISKERS
    parts = [LEGEND.format(marks="Bands and whiskers" if banded else "Whiskers")]
    parts += [APART] if sweep.recipe.ordered or len(sweep.series) - len(moving) > 1 else []
    exact = [row.cell for one in sweep.series for row in one.rows if row.cell.method == "exact"]
    if any(dict(cell.options).get("num_speculative_tokens", "auto") == "auto" for cell in exact):
        parts.append(AUTOMATIC)
    return "\n".join(parts)


def _handle(one: Series, ordered: bool) -> Artist:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if one.constant or ordered:
        return Line2D([], [], **_stroke(one.curve), **({} if one.constant else _mark(one.curve)))
    return Patch(**_fill(one.curve))


def _value(panel: Panel, row: Row) -> float:
    """Not a number, which is not drawn, where there is none: a drafter may have found nothing to draft."""
    value = panel.value(row)
    return math.nan if value is None else value


def _colour(curve: Curve) -> str:
    return COLOURS.get(curve.method, GRID)


def _stroke(curve: Curve) -> dict[str, Any]:
    return {"color": _colour(curve), "linestyle": DASHES[curve.schedule]}


def _mark(curve: Curve) -> dict[str, Any]:
    hollow = {"markerfacecolor": "white"} if curve.schedule == "dynamic" else {}
    return {"marker": MARKERS[curve.method], "markersize": 4.5, **hollow}


def _fill(curve: Curve) -> dict[str, Any]:
    """Dynamic bars are hatched: colour alone tells the method."""
    if curve.schedule == "static":
        return {"facecolor": _colour(curve), "edgecolor": _colour(curve)}
    return {"facecolor": "none", "edgecolor": _colour(curve), "hatch": "////"}
