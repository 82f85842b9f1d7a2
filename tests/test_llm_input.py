"""Input that is odd, but that users do pass: each is taken as meant, or refused in one sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from simsd import LLM, ConfigError, PromptError, SamplingParams

SHORT = SamplingParams(max_tokens=4)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(method="none")


@pytest.mark.parametrize("ids", [np.array([5, 6]), torch.tensor([5, 6]), (5, 6)], ids=["numpy", "torch", "tuple"])
def test_ids_may_come_as_an_array(llm, ids):
    assert llm.generate(ids, SHORT)[0].token_ids == llm.generate([5, 6], SHORT)[0].token_ids


@pytest.mark.parametrize("prompt", [None, 5, {"a": 1}, b"bytes"], ids=repr)
def test_what_is_no_prompt_is_refused(llm, prompt):
    with pytest.raises(PromptError, match=type(prompt).__name__):
        llm.generate(prompt, SHORT)


@pytest.mark.parametrize("messages", [None, "text", 3], ids=repr)
def test_what_is_no_conversation_is_refused(llm, messages):
    with pytest.raises(PromptError, match="conversation"):
        llm.chat(messages, SHORT)


def test_no_prompts_give_no_completions(llm):
    assert llm.generate([], SHORT) == []


@pytest.mark.parametrize(
    "params",
    [
        {"stop": (), "stop_token_ids": []},
        {"temperature": np.float32(0.5), "top_k": np.int64(3), "seed": np.int64(1)},
        {"temperature": 1.0, "top_k": 10**20},
        {"seed": 2**64},
    ],
    ids=repr,
)
def test_odd_parameters_are_taken_as_meant(llm, params):
    assert llm.generate("hello", SamplingParams(max_tokens=4, **params))[0].error is None


def test_no_denoising_steps_are_refused_and_not_taken_for_the_default(llm):
    with pytest.raises(ConfigError, match="denoising_steps is 0"):
        llm.generate("hello", SamplingParams(denoising_steps=0))


@pytest.mark.parametrize("options", [{"max_num_seqs": 0}, {"max_model_len": 1}], ids=repr)
def test_an_llm_on_the_same_weights_checks_its_sizes_too(llm, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        llm.with_options(**options)


def test_trajectories_are_asked_for_where_they_are_needed(llm):
    with pytest.raises(ConfigError, match="trajectories"):
        llm.with_options(method="exact", drafter="trajectory").generate("hello", SHORT)


@pytest.mark.parametrize("params", [{"max_tokens": 5}, [SHORT]], ids=["dict", "list"])
def test_parameters_of_another_type_are_refused(llm, params):
    with pytest.raises(ConfigError, match=type(params).__name__):
        llm.generate("hello", params)
