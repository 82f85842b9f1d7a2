"""Figures of a report, in one style: how fast, what a forward gives, and where the time goes.

matplotlib is used without its global state: figures are made directly, and their looks are set on them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simsd.benchmark.cell import labels
from simsd.benchmark.summary import Row
from simsd.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which people who see colours differently can tell apart; they show on white and on black.
COLOURS = {"none": "#8b949e", "simsd": "#e69f00", "exact": "#0072b2", "exact-draft-order": "#009e73"}
PARTS = {"draft": "#cc79a7", "verify": "#56b4e9", "accept": "#d55e00"}
INK = "#24292e"  # a shade that nothing else has: `svg` makes it the text colour of the page
GRID = "#8b949e"
SIZE = 9  # points
DPI = 160


def require() -> None:
    """Raises ConfigError where matplotlib is missing: before a long run, not after it."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ConfigError("plots need matplotlib; install it with: pip install 'simsd[bench]'") from error


def blank(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of that many inches with a grid of panels, row by row."""
    require()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def style(axes: Axes, *, title: str = "", xlabel: str = "", ylabel: str = "", grid: str = "y") -> None:
    """The looks of a panel; call it after drawing. grid: "x", "y" or "both", the directions that have a scale."""
    axes.set_title(title, fontsize=SIZE + 1, color=INK, loc="left", fontweight="bold")
    axes.set_xlabel(xlabel, fontsize=SIZE, color=INK)
    axes.set_ylabel(ylabel, fontsize=SIZE, color=INK)
    axes.tick_params(labelsize=SIZE, colors=INK, length=0)
    axes.set_axisbelow(True)
    axes.grid(axis=grid, color=GRID, alpha=0.35, linewidth=0.6)  # pyright: ignore[reportArgumentType]
    axes.patch.set_alpha(0)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(GRID)


def legend(owner: Axes | Figure, **where: Any) -> None:
    """A legend without a frame."""
    owner.legend(frameon=False, fontsize=SIZE, labelcolor=INK, **where)


def image(figure: Figure, kind: str) -> bytes:
    """The figure as a file of this kind, "png" or "svg". The same figure gives the same bytes."""
    import matplotlib as mpl

    out = io.BytesIO()
    nothing = {"Software": None} if kind == "png" else {"Date": None}
    with mpl.rc_context({"svg.hashsalt": "simsd"}):
        figure.savefig(out, format=kind, dpi=DPI if kind == "png" else "figure", facecolor="white", metadata=nothing)
    return out.getvalue()


def save(figure: Figure, stem: Path) -> list[Path]:
    """Writes stem.png and stem.svg. Raises OSError."""
    files = [stem.parent / f"{stem.name}.{kind}" for kind in ("png", "svg")]
    for file in files:
        file.write_bytes(image(figure, file.suffix[1:]))
    return files


def svg(figure: Figure, name: str) -> str:
    """The figure as an svg element for a page, on whose background and in whose text colour it stands.

    name: begins its ids, which must differ from those of the page's other figures. Styles become attributes: a page
    whose policy allows no style but its own can hold it; it sets `stroke-linejoin: round` for svg elements.
    """
    import matplotlib as mpl

    out = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with mpl.rc_context({"svg.hashsalt": "simsd"}):
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    text = out.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<(style|metadata)\b.*?</\1>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'\bstyle="([^"]*)"', _attributes, text)
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)


def _attributes(found: re.Match[str]) -> str:
    pairs = [entry.split(":", 1) for entry in found.group(1).split(";") if entry.strip()]
    return " ".join(f'{name.strip()}="{value.strip()}"' for name, value in pairs)


# ---------------------------------------------------------------------- the figures of `simsd bench`
def speed(rows: Sequence[Row]) -> Figure:
    """Bars: tokens per second relative to ordinary decoding on the static schedule, with the quartiles of repeats."""

    def draw(axes: Axes, at: float, row: Row) -> None:
        ratio = row.ratio_to_static
        if ratio is None:
            return
        reach = [[ratio.median - ratio.low], [ratio.high - ratio.median]]
        axes.barh(at, ratio.median, height=0.72, color=COLOURS.get(row.cell.method, GRID))
        axes.errorbar(ratio.median, at, xerr=reach, color=INK, capsize=2.5, linewidth=1)
        axes.annotate(
            f"{ratio.median:.2f}x", (ratio.high, at), (5, 0), textcoords="offset points", va="center", fontsize=SIZE - 1
        ).set_color(INK)

    figure, axes = _bars(rows, draw)
    axes.axvline(1, color=INK, linewidth=0.8, linestyle=":")
    style(axes, title="Speed", xlabel="decoding speed, ordinary decoding on the static schedule = 1", grid="x")
    return figure


def tokens_per_forward(rows: Sequence[Row]) -> Figure:
    """Bars: tokens of the final text per forward of the target."""

    def draw(axes: Axes, at: float, row: Row) -> None:
        value = row.tokens_per_forward
        axes.barh(at, value, height=0.72, color=COLOURS.get(row.cell.method, GRID))
        axes.annotate(f"{value:.2f}", (value, at), (4, 0), textcoords="offset points", va="center", fontsize=SIZE - 1)
        axes.texts[-1].set_color(INK)

    figure, axes = _bars(rows, draw)
    style(axes, title="What a forward gives", xlabel="tokens per forward of the target, prefill apart", grid="x")
    return figure


def time_per_token(rows: Sequence[Row]) -> Figure:
    """Stacked bars: milliseconds that draft, verification and acceptance take for each token of the final text."""

    def draw(axes: Axes, at: float, row: Row) -> None:
        left = 0.0
        for part, colour in PARTS.items():
            width = row.ms_per_forward[part] / row.tokens_per_forward if row.tokens_per_forward else 0.0
            axes.barh(at, width, left=left, height=0.72, color=colour, label=part)
            left += width

    figure, axes = _bars(rows, draw)
    style(axes, title="Where the time goes", xlabel="milliseconds per token, prefill apart", grid="x")
    handles, names = axes.get_legend_handles_labels()
    first = {name: handle for handle, name in reversed(list(zip(handles, names, strict=True)))}
    legend(axes, handles=[first[part] for part in PARTS], labels=list(PARTS), ncols=3, loc="best")
    return figure


def _bars(rows: Sequence[Row], draw: Callable[[Axes, float, Row], None]) -> tuple[Figure, Axes]:
    """A horizontal bar a row, under a heading for each place of the matrix (schedule, block length, temperature)."""
    lines: list[tuple[str, Row | None]] = []
    names = labels([row.cell for row in rows])
    for at, row in enumerate(rows):
        if at == 0 or row.cell.place != rows[at - 1].cell.place:
            lines.append((row.cell.place_name, None))
        lines.append((names[row.cell], row))
    figure, (axes,) = blank(7.2, 0.9 + 0.25 * len(lines))
    for at, (_, row) in enumerate(lines):
        if row is not None:
            draw(axes, at, row)
    axes.set_yticks(range(len(lines)), [name for name, _ in lines])
    for tick, (_, row) in zip(axes.get_yticklabels(), lines, strict=True):
        tick.set_fontweight("normal" if row else "bold")
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    return figure, axes
