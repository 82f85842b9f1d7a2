"""Every model type with every method, in float64: the exact ones give ordinary decoding's text."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simsd import LLM, SamplingParams
from tests.models.checkpoints import LLADA2, MOE
from tests.tiny import prompt_of, write_checkpoint

FAMILIES: dict[str, dict[str, Any]] = {
    "sdar": {},
    "sdar_moe": MOE,
    "llada2_moe": LLADA2 | {"block_size": 8},
}
_HOME = tempfile.TemporaryDirectory(prefix="simsd-tests-")
ASKED = [
    SamplingParams(max_tokens=18),
    SamplingParams(max_tokens=11, temperature=1.0, seed=1),
    SamplingParams(max_tokens=14, remasking_strategy="low_confidence_dynamic", confidence_threshold=0.4),
]


@cache
def folder(name: str, noise: float) -> Path:
    return write_checkpoint(Path(_HOME.name) / f"{name}-{noise}", noise=noise, **FAMILIES[name])


def llm(name: str, method: str, **options: Any) -> LLM:
    draft = None if method == "none" else folder(name, 0.03)
    return LLM(folder(name, 0.0), draft_model=draft, dtype="float64", device="cpu", method=method, **options)


def decode(llm: LLM) -> list[tuple[list[int], list[int]]]:
    return [(c.token_ids, c.steps) for c in llm.generate([prompt_of(n, n) for n in (5, 8, 3)], ASKED)]


@pytest.mark.parametrize("name", list(FAMILIES))
@pytest.mark.parametrize("options", [{}, {"drafter": "model", "draft_steps": 3}, {"drafter": "self"}], ids=str)
def test_exact_is_ordinary_decoding(name: str, options: dict[str, Any]):
    fast = llm(name, "exact", num_speculative_tokens=8, **options)
    assert decode(fast) == decode(llm(name, "none"))
    assert fast.totals.accepted_tokens > 0


@pytest.mark.parametrize("name", list(FAMILIES))
@pytest.mark.parametrize("method", ["simsd", "exact-draft-order"])
def test_draft_order_methods_run_to_the_end(name: str, method: str):
    found = decode(llm(name, method, draft_steps=4))
    assert [len(tokens) for tokens, _ in found] == [18, 11, 14]


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_draft_by_the_target_itself_is_kept_whole_in_draft_order(name: str):
    target = folder(name, 0.0)
    steps = FAMILIES[name].get("block_size", 4)
    own = LLM(target, draft_model=target, dtype="float64", device="cpu", method="exact-draft-order", draft_steps=steps)
    assert own.generate(prompt_of(8), SamplingParams(max_tokens=20))[0].stats.acceptance_rate == 1.0
