"""`simsd.generate`, called by transformers and directly: ids as transformers returns them, and clear refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GenerationConfig

import simsd
from simsd import ConfigError, PromptError, SamplingParams
from tests.modules import MASK, qwen3

SIZES: dict[str, Any] = {"mask_token_id": MASK, "block_length": 4}
GIVEN: dict[str, Any] = {**SIZES, "custom_generate": simsd.generate}
IDS = torch.tensor([[0, 0, 2, 3, 9], [5, 6, 7, 8, 1]])
REAL = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])


@pytest.fixture(scope="module")
def module() -> Any:
    return qwen3()


def answers(module: Any, prompts: list[list[int]], count: int, stop: tuple[int, ...] = ()) -> list[list[int]]:
    llm = simsd.LLM(module, **SIZES, method="none")
    return [c.token_ids for c in llm.generate(prompts, SamplingParams(max_tokens=count, stop_token_ids=stop))]


@pytest.mark.parametrize("options", [{"method": "none"}, {}, {"draft": True}, {"draft": True, "method": "simsd"}])
def test_transformers_returns_prompts_and_answers(module: Any, options: dict[str, Any]):
    draft = {"draft_model": qwen3(noise=0.02)} if options.pop("draft", False) else {}
    found = module.generate(IDS, attention_mask=REAL, max_new_tokens=9, **GIVEN, **draft, **options)
    assert found.shape == (2, 14)
    assert torch.equal(found[:, :5], IDS)
    if options.get("method") != "simsd":
        assert found[:, 5:].tolist() == answers(module, [[2, 3, 9], [5, 6, 7, 8, 1]], 9)


def test_answers_end_with_their_stop_id_and_are_filled_up(module: Any):
    free = answers(module, [[2, 3, 9], [5, 6, 7, 8, 1]], 12)
    stop = next(token for token in free[0] if token not in free[1])
    end = free[0].index(stop)
    found = module.generate(
        IDS, attention_mask=REAL, max_new_tokens=12, eos_token_id=[stop], pad_token_id=62, **GIVEN
    ).tolist()
    assert found[0][5:] == free[0][: end + 1] + [62] * (11 - end)
    assert found[1][5:] == free[1]


def test_max_length_counts_the_prompt(module: Any):
    assert module.generate(IDS, max_length=11, **GIVEN).shape == (2, 11)
    config = GenerationConfig(max_length=12)
    assert simsd.generate(module, IDS, generation_config=config, **SIZES).shape == (2, 12)


def test_sampling_is_repeatable_and_differs_between_rows(module: Any):
    asked: dict[str, Any] = {"max_new_tokens": 8, "do_sample": True, "temperature": 2.0, "top_k": 0}
    asked |= {"num_return_sequences": 4} | GIVEN
    torch.manual_seed(1)
    first = module.generate(IDS[1:], **asked)
    torch.manual_seed(1)
    assert torch.equal(module.generate(IDS[1:], **asked), first)
    assert len({tuple(row) for row in first.tolist()}) == 4
    torch.manual_seed(2)
    assert not torch.equal(module.generate(IDS[1:], **asked), first)


def test_called_directly_it_takes_the_assistant_and_engine_options(module: Any):
    config = GenerationConfig(max_new_tokens=9)
    options: dict[str, Any] = {"remasking_strategy": "sequential"}
    found = simsd.generate(
        module, IDS, generation_config=config, assistant_model=qwen3(noise=0.02), decoding=options, **SIZES
    )
    llm = simsd.LLM(module, **SIZES, **options)
    expected = [c.token_ids for c in llm.generate(IDS.tolist(), SamplingParams(max_tokens=9))]
    assert found[:, 5:].tolist() == expected
    shifted = simsd.generate(module, IDS, generation_config=config, shifted_logits=True, **SIZES)
    assert not torch.equal(shifted, found)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"num_beams": 2}, "num_beams is 2"),
        ({"repetition_penalty": 1.3}, "does not support RepetitionPenaltyLogitsProcessor"),
        ({"max_time": 1.0}, "does not support MaxTimeCriteria"),
        ({"decoding": {"gamma": 3}}, "unknown option 'gamma'"),
        ({"method": "fast"}, "method is 'fast'"),
    ],
)
def test_what_cannot_be_honoured_is_refused(module: Any, asked: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        module.generate(IDS, max_new_tokens=4, **GIVEN, **asked)


def test_prompts_that_are_no_prompts(module: Any):
    config = GenerationConfig(max_new_tokens=4)
    with pytest.raises(PromptError, match=r"input_ids is \[5\]"):
        simsd.generate(module, IDS[0], generation_config=config, **SIZES)
    with pytest.raises(PromptError, match="zeros only on the left"):
        simsd.generate(module, IDS, generation_config=config, attention_mask=REAL.flip(1), **SIZES)
    with pytest.raises(PromptError, match="MASK"):
        simsd.generate(module, torch.tensor([[1, MASK]]), generation_config=config, **SIZES)
