"""On a CPU with kernels of our own, exact decoding has the very numbers of ordinary decoding, not only its text."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from simsd import LLM, SamplingParams
from simsd.native.library import kernels

pytestmark = pytest.mark.skipif(kernels() is None, reason="no kernels of our own")

QUESTIONS = [
    "Count from 3 in steps of 4, 12 numbers.",
    "What is the chemical symbol of argon?",
    "Nia has 12 coins. She finds 7 more. How many coins does she have now?",
]
WAYS: dict[str, dict[str, Any]] = {
    "auto": {},
    "two blocks": {"num_speculative_tokens": 8},
    "subsets": {"num_speculative_tokens": 6, "states": "subsets"},
    "from the text": {"drafter": "lookup"},
}
DYNAMIC: dict[str, Any] = {"remasking_strategy": "low_confidence_dynamic", "confidence_threshold": 0.9}


@cache
def engine(dtype: str, way: str) -> LLM:
    return LLM(device="cpu", dtype=dtype, **({"method": "none"} if way == "none" else {"method": "exact", **WAYS[way]}))


def numbers(llm: LLM, questions: list[str], params: SamplingParams) -> list[tuple[list[int], list[float] | None]]:
    conversations = [[{"role": "user", "content": question}] for question in questions]
    return [(list(found.token_ids), found.logprobs) for found in llm.chat(conversations, params)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("schedule", [{}, DYNAMIC, {"temperature": 0.8, "seed": 5}], ids=["static", "dynamic", "drawn"])
def test_log_probabilities_are_those_of_ordinary_decoding_to_the_bit(dtype: str, way: str, schedule: dict[str, Any]):
    params = SamplingParams(max_tokens=40, logprobs=True, **schedule)
    ordinary = [numbers(engine(dtype, "none"), [question], params)[0] for question in QUESTIONS]
    assert numbers(engine(dtype, way), QUESTIONS, params) == ordinary  # all at once, beside one by one
    assert all(logprobs for _, logprobs in ordinary)
