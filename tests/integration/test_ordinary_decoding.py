"""Method `none` is the textbook's decoder on an independent model: transformers' Qwen3, without a cache."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from simsd.engine.options import SamplingParams
from tests import textbook
from tests.models.reference import Reference
from tests.tiny import MASK, Request, decode, engine, folder_of, prompt_of, tiny_model

LAYERS = 2


@cache
def reference() -> Reference:
    return Reference(folder_of(LAYERS, 0, 0.0), torch.float64)


def logits_of(size: int) -> textbook.LogitsOf:
    def whole(text: list[int]) -> list[list[float]]:
        place = torch.arange(len(text))
        hidden = (place[:, None] // size) < (place[None, :] // size)
        bias = torch.zeros(len(text), len(text), dtype=torch.float64).masked_fill(hidden, -torch.inf)
        return reference().logits(torch.tensor([text]), place[None], bias[None, None])[0].tolist()

    return whole


SCHEDULES: list[dict[str, Any]] = [
    {"denoising_steps": 4},
    {"denoising_steps": 3},
    {"denoising_steps": 2},
    {"denoising_steps": 1},
    {"denoising_steps": 4, "remasking_strategy": "low_confidence_dynamic", "confidence_threshold": 0.4},
    {"denoising_steps": 2, "remasking_strategy": "low_confidence_dynamic", "confidence_threshold": 0.6},
    {"denoising_steps": 3, "remasking_strategy": "sequential"},
    {"denoising_steps": 4, "remasking_strategy": "entropy_bounded", "eb_threshold": 3.0},
    {"denoising_steps": 3, "remasking_strategy": "random"},
]
SAMPLERS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.75, "top_k": 3},
    {"temperature": 1.5, "top_p": 0.75},
    {"temperature": 1.0, "top_k": 1},
]


def assert_is_the_textbooks(prompt: int, size: int, max_tokens: int, **rules: Any) -> None:
    given = prompt_of(prompt, seed=prompt)
    book = textbook.Rules(**rules)
    tokens, steps = textbook.decode(logits_of(size), given, size, MASK, max_tokens, book)
    params = SamplingParams(max_tokens=max_tokens, **(rules | {"seed": rules.get("seed", 0)}))
    found = decode(engine(tiny_model(LAYERS), size), [Request(given, params)])[0]
    assert (found.token_ids, found.token_steps) == (tokens, steps)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("prompt", [1, 3, 4, 8, 9])
def test_every_schedule_for_prompts_short_aligned_and_ending_inside_a_block(schedule, prompt):
    assert_is_the_textbooks(prompt, 4, 10, **schedule)


@pytest.mark.parametrize("sampler", SAMPLERS[1:], ids=str)
@pytest.mark.parametrize("schedule", [SCHEDULES[i] for i in (0, 1, 4, 7, 8)], ids=str)
def test_every_sampler(schedule, sampler):
    assert_is_the_textbooks(6, 4, 9, seed=11, **schedule, **sampler)


@pytest.mark.parametrize(("size", "steps"), [(1, 1), (2, 2), (5, 3), (8, 8), (8, 3), (16, 6)])
def test_every_block_length(size, steps):
    assert_is_the_textbooks(size + 1, size, 2 * size, denoising_steps=steps)
    assert_is_the_textbooks(size, size, size + 1, denoising_steps=steps, temperature=1.0, seed=3)
