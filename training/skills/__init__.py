"""Questions and answers of five skills, made from rules and from public facts.

Each skill mirrors the shape of one public benchmark, at a size that a model of a few million parameters can learn,
so that accuracy and acceptance can be measured anywhere:

    math    GSM8K     word problem -> worked steps, last line '#### N'
    code    MBPP      task sentence -> one Python function, graded by running asserts
    trivia  TriviaQA  factual question -> short answer
    choice  MMLU      question with options A-D -> 'The answer is X.'
    chat    (none)    longer lists and sequences, for throughput

A sample is a dict: skill, question, answer, and for code also 'tests'.
The order of the random draws is part of the recipe: the embedded suites are reproduced bit by bit from their seed.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any

from training.skills.arithmetic import math
from training.skills.facts import choice, trivia
from training.skills.lists import chat
from training.skills.programs import code

Sample = dict[str, Any]

SKILLS: dict[str, Callable[[random.Random], Sample]] = {
    "math": math,
    "code": code,
    "trivia": trivia,
    "choice": choice,
    "chat": chat,
}
WEIGHTS = {"math": 0.34, "code": 0.2, "trivia": 0.14, "choice": 0.14, "chat": 0.18}


def held_out(sample: Sample) -> bool:
    """True for the 1 question in 40 that no training run may see."""
    return zlib.crc32(sample["question"].encode()) % 40 == 0


def draw(
    r: random.Random,
    held: bool = False,
    skill: str | None = None,
    weights: dict[str, float] = WEIGHTS,
) -> Sample:
    """One sample, from the held-out questions or from all the others."""
    while True:
        name = skill or r.choices(list(weights), list(weights.values()))[0]
        sample = SKILLS[name](r)
        if held_out(sample) == held:
            return sample
