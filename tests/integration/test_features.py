"""The README's table of models and features: each "yes" works, each "no" is refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simsd import LLM, SamplingParams
from simsd.errors import SimsdError
from tests.integration.test_families import folder
from tests.integration.test_modules import GIVEN, modules
from tests.tiny import prompt_of

README = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")
HEAD = "| model |"
ASKED = [
    SamplingParams(max_tokens=18),
    SamplingParams(max_tokens=11, temperature=1.0, seed=1),
    SamplingParams(max_tokens=14, remasking_strategy="low_confidence_dynamic", confidence_threshold=0.4),
]
PROMPTS = [prompt_of(n, n) for n in (5, 8, 3)]
Answer = list[tuple[list[int], list[int]]]


def table() -> dict[str, dict[str, str]]:
    """Model -> feature -> yes or no."""
    lines = README[README.index(HEAD) :].split("\n\n")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def checkpoint(name: str) -> Callable[..., LLM]:
    def make(**options: Any) -> LLM:
        return LLM(folder(name, 0.0), draft_model=folder(name, 0.03), dtype="float64", device="cpu", **options)

    return make


def module(shifted: bool) -> Callable[..., LLM]:
    def make(**options: Any) -> LLM:
        target, draft = modules("qwen3")
        return LLM(target, draft_model=draft, **GIVEN, shifted_logits=shifted, **options)

    return make


MODELS: dict[str, Callable[..., LLM]] = {
    "SDAR, TraDo (`sdar`)": checkpoint("sdar"),
    "SDAR-MoE (`sdar_moe`)": checkpoint("sdar_moe"),
    "LLaDA2.x (`llada2_moe`)": checkpoint("llada2_moe"),
    "a module of `transformers`": module(shifted=False),
    "the same, shifted logits": module(shifted=True),
}


def decode(llm: LLM) -> Answer:
    found = [(c.token_ids, c.steps) for c in llm.generate(PROMPTS, ASKED)]
    llm.close()
    return found


def speculative(make: Callable[..., LLM], method: str, **options: Any) -> LLM:
    return make(method=method, num_speculative_tokens=6, **options)


def exact(make: Callable[..., LLM]) -> None:
    assert decode(speculative(make, "exact")) == decode(make(method="none"))


def paired(make: Callable[..., LLM]) -> None:
    llm = speculative(make, "simsd")
    assert [len(tokens) for tokens, _ in decode(llm)] == [18, 11, 14]
    assert llm.options.layout == "paired"
    assert llm.totals.drafted_tokens > 0


def batch(make: Callable[..., LLM]) -> None:
    for method in ("none", "simsd", "exact"):
        together = speculative(make, method, max_num_seqs=3) if method != "none" else make(method=method)
        alone = speculative(make, method, max_num_seqs=1) if method != "none" else make(method=method, max_num_seqs=1)
        assert decode(together) == decode(alone)


def int8(make: Callable[..., LLM]) -> None:
    assert decode(speculative(make, "exact", quantize="int8")) == decode(make(method="none", quantize="int8"))


def tensor_parallel(make: Callable[..., LLM]) -> None:
    assert decode(speculative(make, "exact", tensor_parallel_size=2)) == decode(make(method="none"))


FEATURES: dict[str, Callable[[Callable[..., LLM]], None]] = {
    "`exact`": exact,
    "paired (`simsd`)": paired,
    "batch": batch,
    "int8": int8,
    "tensor parallel": tensor_parallel,
}


def test_the_table_is_of_these_models_and_features() -> None:
    found = table()
    assert list(found) == list(MODELS)
    assert all(list(row) == list(FEATURES) for row in found.values())


@pytest.mark.parametrize("feature", list(FEATURES))
@pytest.mark.parametrize("model", list(MODELS))
def test_each_cell_says_what_is_so(model: str, feature: str) -> None:
    if table()[model][feature] == "yes":
        FEATURES[feature](MODELS[model])
    else:
        assert table()[model][feature] == "no"
        with pytest.raises(SimsdError):
            FEATURES[feature](MODELS[model])
