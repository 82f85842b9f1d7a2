from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from simsd.benchmark.curves import MOST_WHISKERS, PANELS, figure
from simsd.benchmark.plots import COLOURS
from simsd.benchmark.recipes import RECIPES
from simsd.benchmark.sweep import Series, Sweep
from tests.benchmark.sweeps import invented


def panels(axes: list[Axes]) -> dict[str, Axes]:
    return {one.get_title(loc="left"): one for one in axes if one.get_title(loc="left")}


def drawn(axes: Axes, one: Series) -> tuple[list[float], list[float]] | None:
    """x and y of a curve, or of its bars; None where the panel has it not."""
    label = one.curve.label
    for line in axes.get_lines():
        if line.get_label() == label:
            return np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()
    for bars in axes.containers:
        if bars.get_label() == label:
            return [bar.get_x() + bar.get_width() / 2 for bar in bars], [bar.get_height() for bar in bars]
    return None


def whiskers(axes: Axes) -> set[tuple[float, float]]:
    """The intervals that are drawn, as whiskers or as the height of a band at each of its points, rounded."""
    places: dict[tuple[int, int, float], list[float]] = {}
    for index, found in enumerate(axes.collections):
        for number, path in enumerate(found.get_paths()):
            for at, height in np.asarray(path.vertices).tolist():
                places.setdefault((index, number, at), []).append(height)
    return {(round(min(heights), 9), round(max(heights), 9)) for heights in places.values()}


@pytest.fixture(scope="module", params=list(RECIPES))
def plot(request: pytest.FixtureRequest) -> tuple[Sweep, list[Axes]]:
    """A sweep and the panels of its figure."""
    found = invented(request.param)
    return found, figure(found).axes


def test_the_numbers_drawn_are_those_of_the_rows(plot: tuple[Sweep, list[Axes]]) -> None:
    found, axes = plot
    assert set(panels(axes)) == {panel.title for panel in PANELS}
    for panel in PANELS:
        place = panels(axes)[panel.title]
        assert [tick.get_text() for tick in place.get_xticklabels()] == [str(value) for value in found.values]
        for one in found.series:
            wanted = [panel.value(row) for row in one.rows]
            if one.curve.method == "none" and panel.title == "Acceptance rate":
                assert (set(wanted), drawn(place, one)) == ({None}, None)
                continue
            x, y = drawn(place, one) or ([], [])
            if one.constant:
                assert (x, y) == ([0, 1], [wanted[0]] * 2)  # from side to side, in axes coordinates
            else:
                assert [None if math.isnan(height) else height for height in y] == wanted
                assert all(abs(at - index) < 0.5 for index, at in enumerate(x))


def test_whiskers_reach_from_end_to_end_of_the_interval(plot: tuple[Sweep, list[Axes]]) -> None:
    found, axes = plot
    for panel in PANELS:
        shown = whiskers(panels(axes)[panel.title])
        intervals = [panel.interval(row) for one in found.series for row in one.rows]
        assert shown == {(round(one[0], 9), round(one[1], 9)) for one in intervals if one is not None}
        assert bool(shown) == panel.title.startswith(("Accuracy", "Speed"))


def test_curves_and_bars_of_a_value_do_not_hide_each_other(plot: tuple[Sweep, list[Axes]]) -> None:
    found, axes = plot
    place = panels(axes)["Tokens per forward of the target"]
    moving = [drawn(place, one) or ([], []) for one in found.series if not one.constant]
    places = [round(at, 6) for x, _ in moving for at in x]
    assert len(set(places)) == len(places) == len(moving) * len(found.values)


@pytest.mark.parametrize("height", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", ["layout", "gamma"])
def test_equal_lines_are_all_seen(name: str, height: float) -> None:
    """Each has rows of pixels of its own, at most a few points from where it belongs."""
    found = invented(name)
    level = [replace(one, rows=tuple(replace(row, same_text=height) for row in one.rows)) for one in found.series]
    drawing = figure(replace(found, series=level))
    drawing.canvas.draw()
    place = panels(drawing.axes)["Same text as ordinary decoding"]
    lines = [(one.constant, line) for one in level for line in place.get_lines() if line.get_label() == one.curve.label]
    for kind in (True, False):  # from side to side, and with a point at each value
        tops = sorted(line.get_transform().transform((0.5, height))[1] for constant, line in lines if constant is kind)
        points = [(at - place.transData.transform((0, height))[1]) * 72 / drawing.dpi for at in tops]
        assert len(points) == {"layout": 4 if kind else 0, "gamma": 2 if kind else 4}[name]
        assert all(abs(at) < 4 for at in points)
        assert all(above - below > 1.4 for below, above in pairwise(points))  # their width


def test_the_legend_names_every_curve_in_the_methods_colour(plot: tuple[Sweep, list[Axes]]) -> None:
    found, axes = plot
    (legend,) = [legend for one in axes if (legend := one.get_legend()) is not None]
    assert [text.get_text() for text in legend.get_texts()] == [one.curve.label for one in found.series]
    for handle, one in zip(legend.legend_handles, found.series, strict=True):
        colour = handle.get_color() if isinstance(handle, Line2D) else handle.get_edgecolor()  # type: ignore[union-attr]
        assert to_hex(colour) == COLOURS[one.curve.method]


def test_prompts_without_answers_have_no_accuracy() -> None:
    found = figure(invented("drafter", graded=False))
    assert set(panels(found.axes)) == {panel.title for panel in PANELS} - {"Accuracy"}
    assert sum(one.get_legend() is not None for one in found.axes) == 1


def test_the_title_asks_the_question() -> None:
    found = invented("threshold")
    assert figure(found).get_suptitle() == f"{found.recipe.title}. {found.recipe.question}\n{found.note}"


def test_many_wide_intervals_are_bands_and_few_are_whiskers() -> None:
    for name in ("gamma", "block-length"):
        found = invented(name)
        axes = figure(found).axes
        place = panels(axes)["Accuracy"]
        moving = [one for one in found.series if not one.constant]
        bands = [one for one in place.collections if isinstance(one, PolyCollection)]
        many = len(moving) * len(found.values) > MOST_WHISKERS
        assert len(bands) == (len(moving) if many else 0)
        assert many is (name == "gamma")
        ((told,),) = [[text.get_text() for text in one.texts] for one in axes if one.get_legend()]
        assert ("Bands and whiskers: of accuracy" in told) is many
        assert "Lines of equal height stand a line's width apart." in told


@pytest.mark.parametrize(("name", "automatic"), [("gamma", False), ("layout", False), ("threshold", True)])
def test_the_figure_says_where_the_window_is_automatic(name: str, automatic: bool) -> None:
    ((told,),) = [[text.get_text() for text in axes.texts] for axes in figure(invented(name)).axes if axes.get_legend()]
    assert ("The window of exact is automatic" in told) is automatic
