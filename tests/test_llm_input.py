"""Input that is odd, but that users do pass: each is taken as meant, or refused in one sentence."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from simsd import LLM, ConfigError, PromptError, SamplingParams
from simsd.llm import Trajectory

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


@pytest.mark.parametrize("params", [{"max_tokens": 5}, "greedy"], ids=["dict", "str"])
def test_parameters_of_another_type_are_refused(llm, params):
    with pytest.raises(ConfigError, match=type(params).__name__):
        llm.generate("hello", params)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 10**400},
        {"temperature": 1e300},
        {"eb_threshold": 10**400},
        {"stop": 5},
        {"stop_token_ids": 5},
        {"ignore_eos": "yes"},
        {"logprobs": 3},
    ],
    ids=lambda params: next(iter(params)),
)
def test_parameters_that_cannot_be_meant_are_named(llm, params):
    with pytest.raises(ConfigError, match=f"{next(iter(params))} is "):
        llm.generate("hello", SamplingParams(max_tokens=4, **params))


@pytest.mark.parametrize("temperature", [1e-7, 1e-38, 1e-320])
def test_hardly_any_temperature_is_none(llm, temperature):
    cold = llm.generate("hello", SamplingParams(max_tokens=8, temperature=temperature, seed=1))[0]
    assert cold.token_ids == llm.generate("hello", SamplingParams(max_tokens=8))[0].token_ids


@pytest.mark.parametrize(
    "trajectory",
    [Trajectory([9999], [0]), Trajectory([-1], [0]), "x", 5],
    ids=["beyond", "negative", "text", "number"],
)
def test_a_bad_trajectory_fails_alone(llm, trajectory):
    drafted = llm.with_options(method="exact", drafter="trajectory")
    good, bad = drafted.generate([[65], [66]], SHORT, trajectories=[None, trajectory])
    assert good.error is None
    assert isinstance(bad.error, ConfigError)
    with pytest.raises(ConfigError, match="trajectory"):
        drafted.generate([66], SHORT, trajectories=[trajectory])


def test_a_trajectory_that_would_be_ignored_is_refused(llm):
    with pytest.raises(ConfigError, match="drafter='trajectory'"):
        llm.generate([66], SHORT, trajectories=[Trajectory([1], [0])])
    with pytest.raises(ConfigError, match="needs recorded trajectories"):
        llm.with_options(method="exact", drafter="trajectory").stream([66], SHORT)


@pytest.mark.parametrize("values", [["a"], [1.5], [True], [2**70]], ids=repr)
def test_a_trajectory_is_whole_numbers(values):
    with pytest.raises(ConfigError, match="whole numbers"):
        Trajectory(values, [0])
    with pytest.raises(ConfigError, match="whole numbers"):
        Trajectory([0], values)


def test_a_single_prompt_takes_a_single_trajectory(llm):
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    first = llm.generate([66, 67], params)[0]
    drafted = llm.with_options(method="exact", drafter="trajectory")
    again = drafted.generate([66, 67], params, trajectories=first.trajectory)[0]
    assert again.token_ids == first.token_ids
    assert again.stats.target_forwards < first.stats.target_forwards


def test_a_limit_below_one_block_is_refused(llm):
    with pytest.raises(ConfigError, match="less than one block of 4"):
        llm.with_options(max_model_len=3)


def test_a_very_long_block_is_bounded(llm):
    with pytest.warns(UserWarning, match="block length"):
        wide = llm.with_options(method="exact", block_length=128)
    out = wide.generate("hello", SamplingParams(max_tokens=4, denoising_steps=2))[0]
    assert out.error is None
    assert out.stats.query_tokens_per_forward < 10_000


def test_several_threads_may_use_one_llm(llm):
    exact = llm.with_options(method="exact")
    prompts = [[65 + i] * (3 + i) for i in range(6)]
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    expected = [c.token_ids for c in exact.generate(prompts, params)]

    def ask(at: int) -> list[int]:
        if at % 2:
            return [token for piece in exact.stream(prompts[at], params) for token in piece.token_ids]
        return exact.generate(prompts[at], params)[0].token_ids

    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(ask, range(len(prompts)))) == expected


def test_a_text_that_no_number_of_tokens_could_hold_is_refused_unread(llm, monkeypatch):
    from simsd.models.tokenizer import Tokenizer

    def never(self, text, **_):
        raise AssertionError("it was tokenized")

    monkeypatch.setattr(Tokenizer, "encode", never)
    with pytest.raises(PromptError, match="has 50000000 characters"):
        llm.generate("a" * 50_000_000, SHORT)
