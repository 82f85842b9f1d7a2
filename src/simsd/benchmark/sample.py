"""What is measured once: one cell, one repeat, one group of prompts. All reports are computed from samples."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from simsd.llm import Completion, Stats

# Of `LLM.totals`; a sample holds their growth.
COUNTED = (
    "rounds",
    "target_forwards",
    "draft_forwards",
    "drafted_tokens",
    "accepted_tokens",
    "query_tokens",
    "prefill_tokens",
    "prefill_seconds",
    "draft_seconds",
    "verify_seconds",
    "accept_seconds",
    "seconds",
)


@dataclass(frozen=True)
class Answer:
    """One prompt's result. tokens: of the final ids, stop id excluded; text: a digest of the ids; right: None if
    there is nothing to grade."""

    tokens: int
    text: str
    finish: str
    right: bool | None = None


@dataclass(frozen=True)
class Sample:
    """cost: what `COUNTED` names; peak_bytes: as `memory.peak_bytes`."""

    cell: str
    repeat: int
    group: int
    answers: list[Answer]
    cost: dict[str, float]
    peak_bytes: int

    @property
    def place(self) -> tuple[str, int, int]:
        return self.cell, self.repeat, self.group

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Sample:
        return cls(**{**data, "answers": [Answer(**answer) for answer in data["answers"]]})


def growth(before: Stats, after: Stats) -> dict[str, float]:
    return {name: getattr(after, name) - getattr(before, name) for name in COUNTED}


def digest(token_ids: Sequence[int]) -> str:
    """Equal for equal ids, and short."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()[:16]


def answer(completion: Completion, right: bool | None) -> Answer:
    return Answer(len(completion.token_ids), digest(completion.token_ids), completion.finish_reason, right)
