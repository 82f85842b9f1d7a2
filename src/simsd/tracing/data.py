"""A trace as plain data: what `simsd trace --json` prints and what the page is built on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simsd.engine.trace import RoundTrace
    from simsd.llm import Completion

VERDICTS = ("known", "accepted", "corrected", "bonus", "rejected", "masked")


def trace_data(
    prompt: str, completion: Completion, token_text: Callable[[int], str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The whole trace of one completion.

    Args:
        prompt: the text that the user asked with.
        token_text: one id as readable text.
        options: what to show of the decoding options, by name.

    Returns:
        "prompt", "text", "token_ids", "finish_reason", "steps", "stats", "options", "rounds" (the fields of
        `RoundTrace`; the rows of a mask are strings of 0 and 1, query row by key row) and "tokens" (id -> text).
    """
    rounds = completion.trace or []
    return {
        "prompt": prompt,
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "steps": list(completion.steps),
        "stats": completion.stats.to_dict(),
        "options": dict(options),
        "rounds": [_round(found) for found in rounds],
        "tokens": {str(i): token_text(i) for i in _ids(completion, rounds)},
    }


def _round(found: RoundTrace) -> dict[str, Any]:
    layout = found.layout
    return {
        "index": found.index,
        "block_start": found.block_start,
        "block_length": found.block_length,
        "before": list(found.before),
        "drafted": list(found.drafted),
        "after": list(found.after),
        "draft_step": list(found.draft_step),
        "verdict": list(found.verdict),
        "finished_blocks": found.finished_blocks,
        "mask_token_id": found.mask_token_id,
        "layout": {
            "ids": list(layout.ids),
            "positions": list(layout.positions),
            "labels": list(layout.labels),
            "mask": ["".join("1" if seen else "0" for seen in row) for row in layout.mask],
            "prefix_length": layout.prefix_length,
        },
    }


def _ids(completion: Completion, rounds: Iterable[RoundTrace]) -> list[int]:
    found = set(completion.token_ids)
    for one in rounds:
        found.update(one.before, one.drafted, one.after, one.layout.ids)
    return sorted(found)


def visible(text: str) -> str:
    """A token as it can be read in a table: spaces, line ends and control characters shown."""
    shown = text.replace("\n", "↵").replace("\t", "⇥").replace(" ", "␣")
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in shown) or "∅"
