"""Drafts from an earlier decoding: its tokens in the order in which it revealed them (method section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from simsd.core.draft import Draft
from simsd.drafters.base import DraftRequest, NoMemory, SequenceView
from simsd.drafters.fixed import Guess, fixed_draft
from simsd.errors import ConfigError

LARGEST = 2**31  # of an id or a step; what is beyond was never one


@dataclass(frozen=True)
class Trajectory:
    """tokens: generated ids, from the first one after the prompt; steps: the reveal step of each inside its block."""

    tokens: Sequence[int]
    steps: Sequence[int]

    def __post_init__(self) -> None:
        for name in ("tokens", "steps"):
            for value in getattr(self, name):
                if not isinstance(value, Integral) or isinstance(value, bool) or abs(int(value)) > LARGEST:
                    raise ConfigError(f"a trajectory has {value!r} among its {name}; it needs whole numbers")
        if len(self.tokens) != len(self.steps):
            raise ConfigError(
                f"a trajectory has {len(self.tokens)} tokens but {len(self.steps)} steps; it needs one step a token"
            )


class TrajectoryDrafter(NoMemory):
    """Replays a recorded trajectory where the block still agrees with the grid; beyond its end it drafts nothing."""

    def propose(self, request: DraftRequest) -> Draft:
        return fixed_draft(request, [self._rest(sequence) for sequence in request.sequences])

    def _rest(self, sequence: SequenceView) -> Guess:
        trajectory: Trajectory | None = sequence.memory.get("trajectory")
        if trajectory is None:
            return (), ()
        begin = len(sequence.text_ids) - sequence.memory["prompt_length"]
        if begin < 0:  # the prompt ends inside this block: its tail is known already
            return [0] * -begin + list(trajectory.tokens), [0] * -begin + list(trajectory.steps)
        return trajectory.tokens[begin:], trajectory.steps[begin:]


def check_trajectory(trajectory: Any, vocab_size: int) -> None:
    """Refuses what is not a trajectory over this vocabulary. Raises ConfigError."""
    if not isinstance(trajectory, Trajectory):
        raise ConfigError(f"a trajectory is {type(trajectory).__name__}; take one from Completion.trajectory")
    for token in trajectory.tokens:
        if not 0 <= token < vocab_size:
            raise ConfigError(f"a trajectory has token id {token}, which is not in the vocabulary 0..{vocab_size - 1}")
