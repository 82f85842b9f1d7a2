from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from matplotlib.axes import Axes

from simsd.benchmark import plots
from simsd.benchmark.cell import matrix
from simsd.benchmark.summary import Row, summarise
from simsd.errors import ConfigError
from tests.benchmark.support import EXACT, STATIC, rows, sample


@pytest.fixture(scope="module")
def two_speeds() -> list[Row]:
    """Exact decoding on the static schedule: 2, 3 and 4 times as fast as ordinary decoding."""
    cells = matrix(["exact"], schedules=[STATIC])
    samples = [
        sample(cell, repeat, seconds=12 / (repeat + 2 if cell.method == "exact" else 1), target_forwards=4.0,
               draft_seconds=0.2, verify_seconds=0.5, accept_seconds=0.1)
        for cell in cells for repeat in range(3)
    ]  # fmt: skip
    return summarise(cells, samples, 1)


def widths(axes: Axes) -> list[float]:
    return [round(patch.get_width(), 6) for patch in axes.patches]  # pyright: ignore[reportAttributeAccessIssue]


def test_bars_are_the_rows(two_speeds: list[Row]) -> None:
    (axes,) = plots.speed(two_speeds).axes
    assert widths(axes) == [1.0, 3.0, 1.0]
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names == ["static, T = 0", "none", "exact", "dynamic, T = 0", "none"]
    reach = axes.collections[1].get_segments()[0]  # pyright: ignore[reportAttributeAccessIssue]
    assert [point[0] for point in reach] == [2.5, 3.5]  # the quartiles
    (axes,) = plots.tokens_per_forward(two_speeds).axes
    assert widths(axes) == [2.5, 2.5, 2.5]


def test_time_is_stacked_by_part_of_a_round(two_speeds: list[Row]) -> None:
    (axes,) = plots.time_per_token(two_speeds).axes
    assert widths(axes)[:3] == [20.0, 50.0, 10.0]  # ms: 0.2, 0.5 and 0.1 seconds for 10 tokens
    assert [round(patch.get_x(), 6) for patch in axes.patches[:3]] == [0.0, 20.0, 70.0]  # pyright: ignore
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["draft", "verify", "accept"]


def test_figures_are_saved_as_png_and_svg_with_the_same_bytes(two_speeds: list[Row], tmp_path: Path) -> None:
    found = [plots.save(plots.speed(two_speeds), tmp_path / name) for name in ("a.v1", "b")]
    assert [path.name for path in found[0]] == ["a.v1.png", "a.v1.svg"]
    assert found[0][0].read_bytes().startswith(b"\x89PNG")
    ET.parse(found[0][1])
    for first, second in zip(*found, strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_an_inline_svg_needs_no_style_and_shares_no_id(two_speeds: list[Row]) -> None:
    texts = [plots.svg(plots.speed(two_speeds), name) for name in ("one", "two")]
    ids = []
    for text in texts:
        root = ET.fromstring(text)
        assert not [e for e in root.iter() if e.tag.endswith("}style") or "style" in e.attrib or "script" in e.tag]
        assert plots.INK not in text and "currentColor" in text
        own = {e.attrib["id"] for e in root.iter() if "id" in e.attrib}
        used = {
            value.removeprefix("#") for e in root.iter() for name, value in e.attrib.items() if name.endswith("href")
        }
        used |= {v[5:-1] for e in root.iter() for v in e.attrib.values() if v.startswith("url(#")}
        assert used and used <= own
        ids.append(own)
    assert not ids[0] & ids[1]


def test_matplotlib_is_left_as_it_was(two_speeds: list[Row], tmp_path: Path) -> None:
    import matplotlib as mpl

    before = mpl.rcParams.copy()
    plots.save(plots.time_per_token(two_speeds), tmp_path / "x")
    assert mpl.rcParams.copy() == before
    assert "matplotlib.pyplot" not in sys.modules


def test_without_matplotlib_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install 'simsd\[bench\]'"):
        plots.speed(rows(EXACT))


def test_every_method_has_its_colour() -> None:
    from simsd.engine.options import METHODS

    assert set(plots.COLOURS) == set(METHODS)
    assert len({*plots.COLOURS.values(), *plots.PARTS.values(), plots.INK}) == len(METHODS) + len(plots.PARTS) + 1
