"""Drafters that no one would use, and the ones that come with the library, by name: for promises that hold for all."""

from __future__ import annotations

import random

from simsd.core.draft import Draft
from simsd.drafters.base import Drafter, DraftRequest, NoMemory, SequenceView
from simsd.drafters.fixed import Guess, fixed_draft
from simsd.drafters.lookup import LookupDrafter
from simsd.drafters.model import ModelDrafter
from simsd.drafters.self import SelfDrafter
from simsd.drafters.trajectory import TrajectoryDrafter
from simsd.engine.graphs import Graphs
from tests.tiny import MASK, runner, tiny_model


class GuessDrafter(NoMemory):
    """A drafter that guesses ids and steps from the current block on."""

    def propose(self, request: DraftRequest) -> Draft:
        return fixed_draft(request, [self.guess(s, request) for s in request.sequences])

    def guess(self, sequence: SequenceView, request: DraftRequest) -> Guess:
        raise NotImplementedError


def coming(sequence: SequenceView) -> tuple[list[int], list[int]]:
    """The true continuation from the current block on, as the recorded trajectory has it."""
    truth = sequence.memory["trajectory"]
    begin = len(sequence.text_ids) - sequence.memory["prompt_length"]
    pad = [0] * max(-begin, 0)
    return pad + list(truth.tokens[max(begin, 0) :]), pad + list(truth.steps[max(begin, 0) :])


class RandomDrafter(GuessDrafter):
    """Any tokens in any order, some of them left out, often several in one step."""

    def __init__(self, seed: int = 0) -> None:
        self.chance = random.Random(seed)

    def guess(self, sequence: SequenceView, request: DraftRequest) -> Guess:
        width = request.blocks * request.state.tokens.shape[1]
        tokens = [self.chance.choice([*range(MASK), *[MASK] * 20]) for _ in range(width)]
        return tokens, [self.chance.randrange(4) for _ in range(width)]


class WrongTokens(GuessDrafter):
    """It knows the truth, and never says a token of it."""

    def guess(self, sequence: SequenceView, request: DraftRequest) -> Guess:
        tokens, steps = coming(sequence)
        return [(t + 1) % MASK for t in tokens], steps


class WrongOrder(GuessDrafter):
    """The true tokens, last step first."""

    def guess(self, sequence: SequenceView, request: DraftRequest) -> Guess:
        tokens, steps = coming(sequence)
        return tokens, [max(steps, default=0) - s for s in steps]


class Spoilt(GuessDrafter):
    """The truth with some tokens replaced and some steps exchanged."""

    def __init__(self, spoil: float = 0.12, seed: int = 0) -> None:
        self.spoil = spoil
        self.chance = random.Random(seed)

    def guess(self, sequence: SequenceView, request: DraftRequest) -> Guess:
        tokens, steps = coming(sequence)
        for i in range(len(tokens)):
            if self.chance.random() < self.spoil:
                tokens[i] = self.chance.randrange(MASK)
            if self.chance.random() < self.spoil:
                j = self.chance.randrange(len(steps))
                steps[i], steps[j] = steps[j], steps[i]
        return tokens, steps


DRAFTERS = (
    "model",
    "model, a look a step",
    "hybrid",
    "self",
    "trajectory",
    "lookup",
    "random",
    "spoilt",
    "wrong tokens",
    "wrong order",
)


def make_drafter(name: str, block_length: int, layers: int = 2, graphs: Graphs | None = None) -> Drafter:
    """A new drafter for the tiny target of that many layers."""
    simple = {
        "self": SelfDrafter,
        "trajectory": TrajectoryDrafter,
        "lookup": LookupDrafter,
        "random": RandomDrafter,
        "spoilt": Spoilt,
        "wrong tokens": WrongTokens,
        "wrong order": WrongOrder,
    }
    if name in simple:
        return simple[name]()
    looks = block_length if name == "model, a look a step" else 1
    draft = runner(tiny_model(layers, 0, 0.02), block_length, graphs)
    return ModelDrafter(draft, block_length, looks, target_first=name == "hybrid")
