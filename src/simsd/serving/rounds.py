"""A round as clients get it: what became of each place, and the rows of the target's forward (docs/serving.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simsd.engine.trace import LayoutTrace, RoundTrace

Json = dict[str, Any]

MOST_LAYOUT_ROWS = 256  # a mask has a character for each pair of rows: 64 KiB at the most


def round_json(found: RoundTrace, token_text: Callable[[int], str], *, layout: bool = False) -> Json:
    """The state of the blocks under decoding after one round, a place each; with `layout`, also the forward's rows."""

    def token(token_id: int) -> str | None:
        return None if token_id == found.mask_token_id else token_text(token_id)

    places = zip(found.before, found.after, found.drafted, found.draft_step, found.verdict, strict=True)
    told: Json = {
        "index": found.index,
        "block_start": found.block_start,
        "block_length": found.block_length,
        "finished_blocks": found.finished_blocks,
        "places": [
            {
                "position": found.block_start + offset,
                "verdict": verdict,
                "before": token(before),
                "drafted": token(drafted),
                "draft_step": step if token(drafted) is not None else None,
                "after": token(after),
            }
            for offset, (before, after, drafted, step, verdict) in enumerate(places)
        ],
    }
    return told | {"layout": _layout_json(found.layout, token)} if layout else told


def _layout_json(layout: LayoutTrace, token: Callable[[int], str | None]) -> Json:
    """The rows and the mask among them; counts alone where they are more than `MOST_LAYOUT_ROWS`."""
    told: Json = {"rows": len(layout.ids), "prefix_length": layout.prefix_length}
    if len(layout.ids) > MOST_LAYOUT_ROWS:
        return told
    return told | {
        "labels": layout.labels,
        "positions": layout.positions,
        "tokens": [token(token_id) for token_id in layout.ids],
        "mask": ["".join("1" if seen else "0" for seen in row) for row in layout.mask],
    }
