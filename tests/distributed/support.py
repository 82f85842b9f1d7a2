"""What the tests of tensor parallelism share: small checkpoints, and an answer as numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simsd import LLM, SamplingParams
from simsd.distributed.workers import Workers
from tests.tiny import prompt_of, write_checkpoint

Answer = list[tuple[list[int], list[int]]]

ASKED = [
    SamplingParams(max_tokens=18),
    SamplingParams(max_tokens=11, temperature=1.0, seed=1),
    SamplingParams(max_tokens=14, remasking_strategy="low_confidence_dynamic", confidence_threshold=0.4),
]


def make(folder: Path, size: int, sizes: dict[str, Any] | None = None, **options: Any) -> LLM:
    """A random target with a draft model that mostly agrees, on `size` ranks."""
    target, draft = folder / "target", folder / "draft"
    if not target.exists():
        write_checkpoint(target, **(sizes or {}))
        write_checkpoint(draft, noise=0.03, **(sizes or {}))
    given: dict[str, Any] = {"dtype": "float64", "device": "cpu", "num_speculative_tokens": 6, **options}
    return LLM(target, draft_model=draft, tensor_parallel_size=size, **given)


def decode(llm: LLM) -> Answer:
    """Tokens and steps of three sequences of different lengths, two of them side by side."""
    return [(c.token_ids, c.steps) for c in llm.generate([prompt_of(n, n) for n in (5, 8, 3)], ASKED)]


def workers_of(llm: LLM) -> Workers:
    assert llm._workers is not None
    return llm._workers


def ended(workers: Workers) -> bool:
    """Whether all processes have ended, and have been waited for."""
    return all(process._process.returncode is not None for process in workers._processes)
