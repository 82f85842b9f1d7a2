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

Place = tuple[str, int, int]  # of a sample in a run: the key of its cell, the repeat and the group


@dataclass(frozen=True)
class Answer:
    """One prompt's result. tokens: of the final ids, stop id excluded; text: a digest of the ids; right: None if
    there is nothing to grade."""

    tokens: int
    text: str
    finish: str
    right: bool | None = None

    @classmethod
    def from_dict(cls, data: Any) -> Answer:
        """As `Sample.from_dict`."""
        text, finish = (_value(data, name, str) for name in ("text", "finish"))
        right = data.get("right")
        if right is not None and not isinstance(right, bool):
            raise ValueError(f"'right' is {_short(right)}")
        return cls(int(_number(data, "tokens", whole=True)), text, finish, right)


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
    def place(self) -> Place:
        return self.cell, self.repeat, self.group

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Sample:
        """The sample that `to_dict` wrote. Raises ValueError where `data`, which may be anything, cannot be one."""
        cell, answers, cost = (_value(data, name, kind) for name, kind in _KINDS.items())
        numbers = (_number(data, name, whole=True) for name in ("repeat", "group", "peak_bytes"))
        repeat, group, peak_bytes = map(int, numbers)
        costs = {name: _number(cost, name) for name in COUNTED}
        read = [Answer.from_dict(answer) for answer in answers]
        _agree(costs, sum(answer.tokens for answer in read))
        return cls(cell, repeat, group, read, costs, peak_bytes)


_KINDS: dict[str, type] = {"cell": str, "answers": list, "cost": dict}
_OF_A_ROUND = tuple(
    name for name in COUNTED if not name.startswith("prefill_") and name not in ("target_forwards", "seconds")
)
_MOST = 2**63  # no count or time is as large


def _agree(cost: dict[str, float], tokens: int) -> None:
    """Raises ValueError where counts contradict each other: all that a round counts is of a target forward."""
    forwards = cost["target_forwards"]
    if forwards == 0:
        found = {"tokens": tokens} | {name: cost[name] for name in _OF_A_ROUND}
        if beside := next((name for name, value in found.items() if value), None):
            raise ValueError(f"'target_forwards' is {forwards}, though {beside!r} is {_short(found[beside])}")
    for part, whole in (("rounds", "target_forwards"), ("accepted_tokens", "drafted_tokens")):
        if cost[part] > cost[whole]:
            raise ValueError(f"{part!r} is {_short(cost[part])}, more than {whole!r}, {_short(cost[whole])}")


def _value(data: Any, name: str, kind: type) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"{_short(data)} is not an object")
    if not isinstance(data.get(name), kind):
        raise ValueError(f"{name!r} is {_short(data.get(name))}")
    return data[name]


def _number(data: dict[str, Any], name: str, whole: bool = False) -> float:
    """One that can have been counted or measured."""
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not 0 <= value < _MOST:
        raise ValueError(f"{name!r} is {_short(value)}")
    return value


def _short(value: Any) -> str:
    return "missing" if value is None else repr(value)[:40]


def growth(before: Stats, after: Stats) -> dict[str, float]:
    return {name: getattr(after, name) - getattr(before, name) for name in COUNTED}


def digest(token_ids: Sequence[int]) -> str:
    """Equal for equal ids, and short."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()[:16]


def answer(completion: Completion, right: bool | None) -> Answer:
    return Answer(len(completion.token_ids), digest(completion.token_ids), completion.finish_reason, right)
