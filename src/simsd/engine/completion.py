"""What a request gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simsd.drafters.trajectory import Trajectory
from simsd.engine.request import Stats
from simsd.engine.trace import RoundTrace
from simsd.errors import SimsdError

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


@dataclass(frozen=True)
class Completion:
    """One request's result.

    prompt:    the text, or ids, that was asked for.
    token_ids: generated ids, the stop id excluded; text: what they decode to, cut before a stop string.
    steps:     for each token the denoising step inside its block that revealed it, from 0: the decode order.
    logprobs:  log p of each token under the target's softmax when it was put; None unless asked for.
    finish_reason: "stop", "length" or "error" (then `error` says what).
    stop_token_id: the id that ended the text; None where a stop string or the length did.
    trace:     one entry a round, if the LLM was made with `trace=True`.
    """

    prompt: Prompt
    text: str
    token_ids: list[int]
    finish_reason: str
    steps: list[int] = field(default_factory=list)
    logprobs: list[float] | None = None
    stats: Stats = field(default_factory=Stats)
    stop_token_id: int | None = None
    trace: list[RoundTrace] | None = None
    error: SimsdError | None = None

    @property
    def trajectory(self) -> Trajectory:
        """This decoding as a draft for another one (drafter "trajectory")."""
        return Trajectory(self.token_ids, self.steps)


@dataclass(frozen=True)
class Piece:
    """New text of a stream, with its tokens; the last piece carries the whole completion."""

    text: str
    token_ids: list[int]
    completion: Completion | None = None
