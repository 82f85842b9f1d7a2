"""int8 weights: of the draft model they change no text; of the target, exact decoding is still ordinary decoding."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simsd import LLM, SamplingParams
from tests.models.checkpoints import LLADA2, MOE
from tests.tiny import prompt_of, write_checkpoint

FAMILIES: dict[str, dict[str, Any]] = {"sdar": {}, "sdar_moe": MOE, "llada2_moe": LLADA2 | {"block_size": 8}}
PROMPTS = [prompt_of(length, length) for length in (5, 8, 3, 21)]
ASKED = [
    SamplingParams(max_tokens=18),
    SamplingParams(max_tokens=11, temperature=1.0, seed=1),
    SamplingParams(max_tokens=14, remasking_strategy="low_confidence_dynamic", confidence_threshold=0.4),
    SamplingParams(max_tokens=16),
]
_HOME = tempfile.TemporaryDirectory(prefix="simsd-tests-")  # removed when the process ends


@cache
def folder(name: str, noise: float) -> Path:
    return write_checkpoint(Path(_HOME.name) / f"{name}-{noise}", noise=noise, **FAMILIES[name])


def llm(name: str, method: str, dtype: str, quantize: str, **options: Any) -> LLM:
    given: dict[str, Any] = {"dtype": dtype, "device": "cpu", "method": method, "quantize": quantize}
    window: dict[str, Any] = {"num_speculative_tokens": 8}  # whatever the clock says
    return LLM(folder(name, 0.0), draft_model=folder(name, 0.02), **given, **(window | options))


def decode(llm: LLM) -> list[tuple[list[int], list[int]]]:
    return [(c.token_ids, c.steps) for c in llm.generate(PROMPTS, ASKED)]


@pytest.mark.parametrize("name", list(FAMILIES))
def test_an_int8_draft_changes_no_text(name: str):
    fast = llm(name, "exact", "float64", "int8-draft")
    assert decode(fast) == decode(llm(name, "none", "float64", "none"))
    assert fast.totals.accepted_tokens > 0


@pytest.mark.parametrize("name", list(FAMILIES))
@pytest.mark.parametrize(
    "options", [{}, {"drafter": "self"}, {"states": "subsets", "num_speculative_tokens": 8}], ids=str
)
def test_exact_is_ordinary_decoding_of_the_quantised_model(name: str, options: dict[str, Any]):
    ordinary = decode(llm(name, "none", "float64", "int8"))
    fast = llm(name, "exact", "float64", "int8", **options)
    assert decode(fast) == ordinary
    assert fast.totals.accepted_tokens > 0


def test_the_quantised_model_is_another_model():
    """Else the tests above would say nothing."""
    assert decode(llm("sdar", "none", "float64", "int8")) != decode(llm("sdar", "none", "float64", "none"))


@pytest.mark.parametrize("name", list(FAMILIES))
@pytest.mark.parametrize("method", ["none", "exact"])
def test_text_does_not_depend_on_the_batch(name: str, method: str):
    together = decode(llm(name, method, "float64", "int8"))
    one = llm(name, method, "float64", "int8")
    alone = [one.generate(prompt, params)[0] for prompt, params in zip(PROMPTS, ASKED, strict=True)]
    assert together == [(c.token_ids, c.steps) for c in alone]
