"""The rounds of a trace in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from simsd.tracing.data import VERDICTS, visible

# Colour and sign: each verdict can be told without seeing colours.
SIGNS = {"known": " ", "accepted": "✓", "corrected": "↻", "bonus": "+", "rejected": "✗", "masked": "·"}
STYLES = {
    "known": "dim",
    "accepted": "green",
    "corrected": "yellow",
    "bonus": "cyan",
    "rejected": "red",
    "masked": "dim",
}
MEANINGS = {
    "known": "known before",
    "accepted": "draft kept",
    "corrected": "target's token instead of the draft's",
    "bonus": "revealed by the target itself, in the free last step",
    "rejected": "drafted, not kept",
    "masked": "still masked",
}


def show(trace: Mapping[str, Any], console: Console) -> None:
    """Prints legend, rounds and text of a `trace_data` object."""
    console.print(_legend())
    for found in trace["rounds"]:
        console.print(_round(found, trace["tokens"], console.width))
    console.print(Panel(Text(trace["text"]), title="text", title_align="left", style="bold"))


def _legend() -> Text:
    parts = [
        Text(f"{SIGNS[name]} {name}: {MEANINGS[name]}", style=STYLES[name]) for name in VERDICTS if name != "known"
    ]
    return Text("\n").join(parts)


def _round(found: Mapping[str, Any], tokens: Mapping[str, str], width: int) -> RenderableType:
    size = found["block_length"]
    blocks = [
        _block(found, tokens, first, width)
        for first in range(0, len(found["after"]), size)
        if _touched(found, first, size) or first == 0
    ]
    layout = found["layout"]
    groups = list(dict.fromkeys(layout["labels"]))
    named = " ".join(groups) if len(groups) < 10 else f"{groups[0]} {groups[1]} ... {groups[-1]}"
    rows, cached = _count(len(layout["ids"]), "row"), _count(layout["prefix_length"], "cached token")
    note = f"{rows} in {_count(len(groups), 'group')} ({named}) beside {cached}"
    return Panel(
        Group(*blocks, Text(note, style="dim")),
        title=f"round {found['index']}",
        title_align="left",
        subtitle=f"{found['finished_blocks']} finished" if found["finished_blocks"] else None,
        subtitle_align="right",
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _touched(found: Mapping[str, Any], first: int, size: int) -> bool:
    return any(verdict not in ("masked", "known") for verdict in found["verdict"][first : first + size])


def _block(found: Mapping[str, Any], tokens: Mapping[str, str], first: int, width: int) -> Table:
    """Columns are the block's positions, all equally wide, so that the blocks of a round stand under each other."""
    size = found["block_length"]
    places = range(first, first + size)
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("", min_width=6, no_wrap=True)
    for place in places:
        room = max(3, min(12, (width - 14) // size - 2))
        table.add_column(
            str(found["block_start"] + place), min_width=room, max_width=room, overflow="ellipsis", no_wrap=True
        )
    table.add_row("before", *(_token(found, tokens, "before", place) for place in places))
    table.add_row("draft", *(_draft(found, tokens, place) for place in places))
    table.add_row("step", *(_step(found, place) for place in places), style="dim")
    table.add_row("after", *(_after(found, tokens, place) for place in places))
    return table


def _token(found: Mapping[str, Any], tokens: Mapping[str, str], name: str, place: int) -> Text:
    token = found[name][place]
    return Text("▢", style="dim") if token == found["mask_token_id"] else Text(visible(tokens[str(token)]))


def _draft(found: Mapping[str, Any], tokens: Mapping[str, str], place: int) -> Text:
    return Text("") if found["verdict"][place] == "known" else _token(found, tokens, "drafted", place)


def _step(found: Mapping[str, Any], place: int) -> str:
    """The draft step that revealed the token, counted from 1."""
    drafted = found["drafted"][place] != found["mask_token_id"]
    return str(found["draft_step"][place]) if drafted else ""


def _after(found: Mapping[str, Any], tokens: Mapping[str, str], place: int) -> Text:
    verdict = found["verdict"][place]
    text = Text(f"{SIGNS[verdict]} ", style=STYLES[verdict])
    return text.append_text(_token(found, tokens, "after", place))
