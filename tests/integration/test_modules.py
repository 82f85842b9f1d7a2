"""Decoding with `transformers` modules: the textbook's text, exactly, with and without shifted logits."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from simsd import LLM, ConfigError, PairError, SamplingParams
from simsd.models.huggingface import wrap
from tests import textbook
from tests.models.checkpoints import random_checkpoint
from tests.modules import MASK, SIZES, filled, llama, qwen3, whole_logits
from tests.tiny import prompt_of, write_checkpoint

SIZE = 4
GIVEN: dict[str, Any] = {"mask_token_id": MASK, "block_length": SIZE}
MODULES = {"qwen3": qwen3, "llama": llama}
PARAMS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"denoising_steps": 3, "temperature": 0.8, "top_p": 0.9},
    {"remasking_strategy": "low_confidence_dynamic", "confidence_threshold": 0.4},
]
SPECULATION: list[dict[str, Any]] = [
    {"drafter": "self"},
    {"drafter": "model", "states": "chain", "draft_steps": 2},
    {"drafter": "hybrid", "states": "subsets", "num_speculative_tokens": 12},
]


@cache
def modules(name: str) -> tuple[Any, Any]:
    """A target, and a draft model that mostly agrees."""
    return MODULES[name](), MODULES[name](noise=0.02)


@cache
def ordinary(name: str, shifted: bool) -> LLM:
    return LLM(modules(name)[0], **GIVEN, shifted_logits=shifted, method="none")


@pytest.mark.parametrize("shifted", [False, True], ids=["own", "shifted"])
@pytest.mark.parametrize("name", list(MODULES))
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_ordinary_decoding_is_the_textbooks(name: str, shifted: bool, params: dict[str, Any]):
    module = modules(name)[0]
    given: dict[str, Any] = {"denoising_steps": SIZE, "seed": 4}
    rules = textbook.Rules(**given | params)
    for length in (1, 7):
        prompt = prompt_of(length, seed=length)

        def logits(text: list[int]) -> list[list[float]]:
            return whole_logits(module, text, SIZE, shifted=shifted).tolist()

        tokens, steps = textbook.decode(logits, prompt, SIZE, MASK, 10, rules)
        found = ordinary(name, shifted).generate(prompt, SamplingParams(max_tokens=10, seed=4, **params))[0]
        assert (found.token_ids, found.steps) == (tokens, steps)


@pytest.mark.parametrize("shifted", [False, True], ids=["own", "shifted"])
@pytest.mark.parametrize("name", list(MODULES))
@pytest.mark.parametrize("speculation", SPECULATION, ids=str)
def test_exact_is_ordinary_decoding(name: str, shifted: bool, speculation: dict[str, Any]):
    target, draft = modules(name)
    speculation = {"num_speculative_tokens": 8} | speculation  # a window of its own may be none
    more = {"shifted_logits": shifted, "method": "exact", "max_num_seqs": 3}
    fast = LLM(target, draft_model=draft, **GIVEN, **more, **speculation)
    prompts = [prompt_of(n, n) for n in (3, 8, 1, 13)]
    for params in PARAMS[:2] if name == "qwen3" else PARAMS[2:]:
        asked = [SamplingParams(max_tokens=(10, 5, 9, 3)[i], seed=i, **params) for i in range(4)]
        expected = ordinary(name, shifted).generate(prompts, asked)
        found = fast.generate(prompts, asked)
        assert [(c.token_ids, c.steps) for c in found] == [(c.token_ids, c.steps) for c in expected]
    assert fast.totals.accepted_tokens > 0


@pytest.mark.parametrize("shifted", [False, True], ids=["own", "shifted"])
@pytest.mark.parametrize(("method", "least"), [("simsd", 0.3), ("exact-draft-order", 1.0)])
def test_draft_order_methods_keep_what_a_draft_by_the_same_module_says(shifted: bool, method: str, least: float):
    target = modules("qwen3")[0]
    llm = LLM(target, draft_model=target, **GIVEN, shifted_logits=shifted, method=method, draft_steps=SIZE)
    out = llm.generate(prompt_of(6), SamplingParams(max_tokens=24))[0]
    assert len(out.token_ids) == 24
    assert out.stats.acceptance_rate is not None
    assert out.stats.acceptance_rate >= least


def test_one_checkpoint_read_by_both_libraries_gives_one_text(tmp_path):
    folder = write_checkpoint(tmp_path)
    sizes = SIZES | {"head_dim": 16, "rope_theta": 10000.0}
    theirs: Any = Qwen3ForCausalLM.from_pretrained(folder, config=Qwen3Config(**sizes), dtype=torch.float64).eval()
    ours = LLM(folder, dtype="float64", device="cpu", method="none")
    options: dict[str, Any] = {"drafter": "model", "draft_steps": SIZE, "states": "chain"}
    mixed = LLM(wrap(theirs, ours.tokenizer, **GIVEN), draft_model=folder, dtype="float64", device="cpu", **options)
    prompt = prompt_of(9)
    expected = ours.generate(prompt, SamplingParams(max_tokens=20))[0]
    found = mixed.generate(prompt, SamplingParams(max_tokens=20))[0]
    assert found.token_ids == expected.token_ids
    assert found.stats.acceptance_rate == 1.0


def test_options_that_belong_to_checkpoints_or_to_modules_are_told_apart(tmp_path):
    with pytest.raises(ConfigError, match="'float32' and device 'auto' are for checkpoints"):
        LLM(qwen3(), **GIVEN, dtype="float32")
    with pytest.raises(ConfigError, match="shifted_logits is for a loaded module"):
        LLM("tiny", shifted_logits=True)
    with pytest.raises(ConfigError, match="tokenizer is for a loaded module"):
        LLM("tiny", tokenizer=object())
    with pytest.raises(ConfigError, match="shifted_logits is 'no'"):
        LLM(qwen3(), **GIVEN, shifted_logits="no")  # type: ignore[arg-type]
    with pytest.raises(PairError, match="vocabulary sizes differ"):
        LLM(qwen3(), draft_model=random_checkpoint(tmp_path), **GIVEN)
    with pytest.raises(PairError, match="vocabulary sizes differ"):
        LLM(qwen3(), draft_model=qwen3(vocab_size=80), **GIVEN)


def test_streams_and_logprobs_of_a_module_without_a_tokenizer():
    llm = LLM(modules("llama")[0], **GIVEN)
    out = llm.generate(prompt_of(5), SamplingParams(max_tokens=9, logprobs=True))[0]
    assert out.text.split() == [str(i) for i in out.token_ids]
    pieces = list(llm.stream(prompt_of(5), SamplingParams(max_tokens=9)))
    assert "".join(piece.text for piece in pieces) == out.text
    assert out.logprobs is not None
    assert all(value < 0 for value in out.logprobs)


def test_the_module_is_left_as_it_was():
    module = filled(qwen3())
    before = {name: weight.clone() for name, weight in module.state_dict().items()}
    LLM(module, **GIVEN).generate(prompt_of(5), SamplingParams(max_tokens=9))
    assert all(torch.equal(weight, before[name]) for name, weight in module.state_dict().items())
    assert "forward" not in vars(module)
