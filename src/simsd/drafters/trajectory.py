"""Drafts from an earlier decoding: its tokens in the order in which it revealed them (method section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simsd.core.draft import Draft
from simsd.drafters.base import DraftRequest, NoMemory, SequenceView
from simsd.drafters.fixed import Guess, fixed_draft
from simsd.errors import ConfigError


@dataclass(frozen=True)
class Trajectory:
    """tokens: generated ids, from the first one after the prompt; steps: the reveal step of each inside its block."""

    tokens: Sequence[int]
    steps: Sequence[int]

    def __post_init__(self) -> None:
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
