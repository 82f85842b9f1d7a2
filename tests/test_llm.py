"""The public door: results, mistakes named in one sentence, and options that share weights."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from simsd import (
    LLM,
    ConfigError,
    ModelError,
    NumericalError,
    PairError,
    PromptError,
    SamplingParams,
    SimsdError,
)
from simsd.core.layout import block_causal
from simsd.core.prefix import Known
from simsd.engine.runner import Runner
from simsd.llm import Stats, Trajectory
from tests.tiny import write_checkpoint

SIZES: dict[str, Any] = {"vocab_size": 272, "mask_token_id": 259}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("checkpoints")
    return {
        "target": write_checkpoint(base / "target", **SIZES),
        "draft": write_checkpoint(base / "draft", noise=0.02, **SIZES),
        "other vocabulary": write_checkpoint(base / "wide", vocab_size=280, mask_token_id=259),
        "other mask": write_checkpoint(base / "masked", vocab_size=272, mask_token_id=257),
        "trained for eight": write_checkpoint(base / "some-model-b8", **SIZES),
    }


@pytest.fixture(scope="module")
def llm(folders) -> LLM:
    return LLM(folders["target"], draft_model=folders["draft"], dtype="float64", device="cpu", max_num_seqs=3)


def one_sentence(error: BaseException, *says: str) -> None:
    text = str(error)
    assert "\n" not in text and len(text) < 300
    assert all(part in text for part in says), text


BAD_PARAMS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -1.0}, "temperature is -1.0"),
    ({"temperature": math.nan}, "temperature is nan"),
    ({"temperature": math.inf}, "temperature is inf"),
    ({"top_p": 0.0}, "top_p is 0.0"),
    ({"top_p": 1.5}, "top_p is 1.5"),
    ({"top_p": math.nan}, "top_p is nan"),
    ({"top_k": -1}, "top_k is -1"),
    ({"max_tokens": 0}, "max_tokens is 0"),
    ({"max_tokens": 2.5}, "max_tokens is 2.5"),
    ({"max_tokens": True}, "max_tokens is True"),
    ({"seed": -3}, "seed is -3"),
    ({"stop": ""}, "stop is ''"),
    ({"stop": ["a", ""]}, "stop is ['a', '']"),
    ({"stop_token_ids": [-1]}, "stop_token_ids is -1"),
    ({"denoising_steps": 0}, "denoising_steps is 0"),
    ({"denoising_steps": 5}, "denoising_steps is 5"),
    ({"remasking_strategy": "luck"}, "remasking_strategy is 'luck'"),
    ({"confidence_threshold": 1.1}, "confidence_threshold is 1.1"),
    ({"eb_threshold": -0.1}, "eb_threshold is -0.1"),
]


@pytest.mark.parametrize(("params", "says"), BAD_PARAMS, ids=str)
def test_bad_parameters_are_named(params, says, llm):
    for call in (llm.generate, llm.stream):
        with pytest.raises(ConfigError) as caught:
            call("abc", SamplingParams(**params))
        one_sentence(caught.value, says)


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"method": "magic"}, "method is 'magic'"),
    ({"layout": "folded"}, "layout is 'folded'"),
    ({"acceptance": "always"}, "acceptance is 'always'"),
    ({"drafter": "oracle"}, "drafter is 'oracle'"),
    ({"states": "all"}, "states is 'all'"),
    ({"remasking_strategy": "luck"}, "remasking_strategy is 'luck'"),
    ({"num_speculative_tokens": 0}, "num_speculative_tokens is 0"),
    ({"num_speculative_tokens": 1.5}, "num_speculative_tokens is 1.5"),
    ({"draft_steps": 5}, "draft_steps is 5"),
    ({"layout": "paired", "acceptance": "replay"}, "'replay'"),
    ({"method": "none", "layout": "paired"}, "'none'"),
    ({"method": "simsd", "states": "swaps"}, "'swaps'"),
    ({"block_length": 0}, "block"),
    ({"max_num_seqs": 0}, "max_num_seqs is 0"),
    ({"draft_ahead": "yes"}, "draft_ahead is 'yes'; it must be True or False"),
    ({"max_model_len": 1}, "max_model_len is 1"),
    ({"gamma": 4}, "'gamma'"),
]


@pytest.mark.parametrize(("options", "says"), BAD_OPTIONS, ids=str)
def test_bad_options_are_named(options, says, llm, folders):
    with pytest.raises(SimsdError) as caught:
        LLM(folders["target"], draft_model=folders["draft"], device="cpu", **options)
    one_sentence(caught.value, says)
    with pytest.raises(ConfigError) as caught:
        llm.with_options(**options)
    one_sentence(caught.value, says)


def test_greedy_match_refuses_a_temperature(llm):
    with pytest.raises(ConfigError, match=r"temperature is 0\.5"):
        llm.with_options(acceptance="match").generate("abc", SamplingParams(temperature=0.5))


@pytest.mark.parametrize("drafter", ["model", "hybrid"])
def test_a_draft_model_that_is_missing_is_asked_for(drafter, folders):
    with pytest.raises(ConfigError, match=f"'{drafter}' needs a draft model"):
        LLM(folders["target"], device="cpu", method="exact", drafter=drafter)


@pytest.mark.parametrize("other", ["other vocabulary", "other mask"])
def test_a_draft_model_of_another_kind_is_refused(other, folders):
    with pytest.raises(PairError) as caught:
        LLM(folders["target"], draft_model=folders[other], device="cpu")
    one_sentence(caught.value, *{"other vocabulary": ("280", "272"), "other mask": ("257", "259")}[other])


BAD_PROMPTS: list[tuple[Any, str]] = [
    ("", "empty"),
    ([], "empty"),
    ("x" * 256, "256 tokens"),
    ([1, 2, 259, 3], "MASK"),
    ([1, 999], "999"),
    ([1, -1], "-1"),
    ([1, 2.5], "2.5"),
    (None, "NoneType"),
]


@pytest.mark.parametrize(("prompt", "says"), BAD_PROMPTS, ids=[says for _, says in BAD_PROMPTS])
def test_a_bad_prompt_in_a_batch_fails_alone(prompt, says, llm):
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    found = llm.generate(["abc", prompt, "de"], params)
    assert [one.finish_reason for one in found] == ["length", "error", "length"]
    assert [one.text for one in found[::2]] == [one.text for one in llm.generate(["abc", "de"], params)]
    assert isinstance(found[1].error, PromptError)
    one_sentence(found[1].error, says)
    assert (found[1].text, found[1].token_ids, found[1].steps) == ("", [], [])


@pytest.mark.parametrize(("prompt", "says"), BAD_PROMPTS[:1] + BAD_PROMPTS[2:5], ids=lambda value: str(value)[:8])
def test_a_single_bad_prompt_raises(prompt, says, llm):
    with pytest.raises(PromptError, match=says):
        llm.generate(prompt)


def test_a_bad_conversation_fails_alone(llm):
    good = [{"role": "user", "content": "hello"}]
    found = llm.chat([good, []], SamplingParams(max_tokens=4))
    assert [one.finish_reason for one in found] == ["length", "error"]
    with pytest.raises(PromptError, match="empty"):
        llm.chat([])


def test_no_prompts_are_no_completions(llm):
    assert llm.generate([]) == []


def test_a_prompt_one_token_short_of_the_limit_gets_one_token(llm):
    found = llm.generate("x" * 255, SamplingParams(max_tokens=9))[0]
    assert (len(found.token_ids), found.finish_reason) == (1, "length")
    short = llm.with_options(max_model_len=16)
    assert len(short.generate("x" * 10, SamplingParams(max_tokens=99))[0].token_ids) == 6
    with pytest.raises(PromptError, match="16"):
        short.generate("x" * 16)


def test_steps_are_measured_by_the_checkpoints_own_block_length(tmp_path):
    folder = write_checkpoint(tmp_path, **SIZES | {"block_size": 8})
    llm = LLM(folder, draft_model=folder, device="cpu", denoising_steps=8, draft_steps=8)
    assert (llm.options.denoising_steps, llm.options.draft_steps, llm.options.block_length) == (8, 8, 8)
    too_many: list[dict[str, Any]] = [{"denoising_steps": 9}, {"draft_steps": 9}]
    for asked in too_many:
        with pytest.raises(ConfigError, match="9"):
            LLM(folder, draft_model=folder, device="cpu", **asked)
    with pytest.raises(ConfigError, match="draft_steps is 3"):
        LLM(folder / "not there", block_length=2, draft_steps=3)


def test_weights_that_are_not_numbers_raise_one_sentence(tmp_path):
    folder = write_checkpoint(tmp_path, **SIZES)
    broken = LLM(folder, dtype="float64", device="cpu")
    target: Any = broken._target.model
    with torch.inference_mode():
        target.embedding.weight[broken.tokenizer.encode("z")[0]] = math.nan
    with pytest.raises(NumericalError) as caught:
        broken.generate("fizz")
    one_sentence(caught.value, "not numbers")
    with pytest.raises(NumericalError):
        list(broken.stream("fizz"))
    found = broken.generate(["abc", "fizz", "de"], SamplingParams(max_tokens=5, ignore_eos=True))
    assert [one.finish_reason for one in found] == ["length", "error", "length"]
    assert isinstance(found[1].error, NumericalError)


def test_a_block_length_that_was_not_trained_warns(folders):
    with pytest.warns(UserWarning, match=r"trained for block length 8, not 4.*block_length=8"):
        LLM(folders["trained for eight"], device="cpu", block_length=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert LLM(folders["trained for eight"], device="cpu", block_length=8).options.block_length == 8


def test_a_missing_checkpoint_is_named():
    with pytest.raises(ModelError, match="no-such-folder"):
        LLM("./no-such-folder")


def test_options_share_weights_and_nothing_else(llm):
    other = llm.with_options(method="simsd", num_speculative_tokens=3, trace=True)
    assert other._target.model is llm._target.model
    assert other._draft is llm._draft
    assert (llm.options.method, other.options.method) == ("exact", "simsd")
    assert (other.options.layout, other.options.acceptance) == ("paired", "rejection")
    expected = llm.generate("abc", SamplingParams(max_tokens=20))[0]
    stream = llm.stream("abc", SamplingParams(max_tokens=20))
    next(stream)
    assert other.generate("xyz", SamplingParams(max_tokens=20))[0].trace
    last = list(stream)[-1].completion
    assert last is not None
    assert (last.token_ids, last.trace) == (expected.token_ids, None)


@pytest.mark.parametrize("method", ["none", "exact"])
def test_log_probabilities_are_those_of_the_state_in_which_the_token_was_put(method, llm):
    size, prompt = 4, [int(t) for t in torch.randint(0, 250, (6,), generator=torch.Generator().manual_seed(1))]
    params = SamplingParams(max_tokens=13, temperature=1.5, top_k=9, seed=4, logprobs=True)
    found = llm.with_options(method=method).generate(prompt, params)[0]
    assert found.logprobs is not None
    assert llm.generate(prompt, SamplingParams(max_tokens=4))[0].logprobs is None
    text, first = [*prompt, *found.token_ids], len(prompt)
    steps = [-1] * first + found.steps
    # a block cut by max_tokens is left out: its later tokens are not known
    for place in range(first, len(text) // size * size):
        begin = place // size * size
        state = [t if s < steps[place] else 259 for t, s in zip(text[begin:], steps[begin:], strict=True)][:size]
        layout = block_causal(torch.tensor([text[:begin] + state]), torch.tensor([0]), size)
        run = Runner(llm._target.model, 259, size, 256)
        logits = llm._target.model.head(run.hidden(layout, Known([0], [0]))[0, place])
        logits[259] = -math.inf
        assert found.logprobs[place - first] == pytest.approx(float(logits.log_softmax(-1)[text[place]]), abs=1e-9)


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 3}, {"denoising_steps": 3}], ids=str)
def test_a_completions_own_trajectory_is_accepted_and_gives_the_same_text(params, llm):
    prompts = ["abc", "a longer prompt", "four"]
    given = SamplingParams(max_tokens=21, **params)
    recorded = llm.with_options(method="none").generate(prompts, given)
    again = llm.with_options(drafter="trajectory").generate(
        prompts, given, trajectories=[one.trajectory for one in recorded]
    )
    for found, one in zip(again, recorded, strict=True):
        assert (found.token_ids, found.steps) == (one.token_ids, one.steps)
        # all but what stands in the block that max_tokens cuts, whose end was not recorded
        assert found.stats.accepted_tokens >= 21 // 4 * 4 - 4
        assert found.stats.target_forwards < one.stats.target_forwards / 2


def test_trajectories_must_be_one_a_prompt_and_whole(llm):
    drafted = llm.with_options(drafter="trajectory")
    with pytest.raises(ConfigError, match="1 trajectories for 2 prompts"):
        drafted.generate(["a", "b"], trajectories=[Trajectory([1], [0])])
    with pytest.raises(ConfigError, match="2 tokens but 1 steps"):
        Trajectory([1, 2], [0])
    with pytest.raises(ConfigError, match="needs recorded trajectories"):
        drafted.generate("a")


def test_ignore_eos_goes_on_to_max_tokens(llm):
    plain = llm.generate("abc", SamplingParams(max_tokens=24, ignore_eos=True))[0]
    stop = max(plain.token_ids, key=plain.token_ids.index)
    own = llm.with_options()
    object.__setattr__(own._target.config, "stop_token_ids", (stop,))
    try:
        assert own.generate("abc", SamplingParams(max_tokens=24))[0].finish_reason == "stop"
        kept = own.generate("abc", SamplingParams(max_tokens=24, ignore_eos=True))[0]
        assert (kept.token_ids, kept.finish_reason) == (plain.token_ids, "length")
        asked = SamplingParams(max_tokens=24, ignore_eos=True, stop_token_ids=[stop])
        assert own.generate("abc", asked)[0].finish_reason == "stop"
    finally:
        object.__setattr__(own._target.config, "stop_token_ids", (258, 256))


def test_a_seed_repeats_and_none_draws_a_fresh_one(llm):
    warm = SamplingParams(max_tokens=16, temperature=1.5)
    assert len({tuple(llm.generate("abc", warm)[0].token_ids) for _ in range(4)}) > 1
    seeded = SamplingParams(max_tokens=16, temperature=1.5, seed=2**70)
    assert llm.generate("abc", seeded)[0].token_ids == llm.generate("abc", seeded)[0].token_ids


def test_each_prompt_may_have_its_own_parameters(llm):
    prompts = ["abc", "abc", "hello"]
    each = [SamplingParams(max_tokens=8, temperature=1.0, seed=1), None, SamplingParams(max_tokens=3)]
    together = llm.generate(prompts, each)
    alone = [llm.generate(prompt, params)[0] for prompt, params in zip(prompts, each, strict=True)]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ([SamplingParams()], "1 params for 2 prompts"),
        ([SamplingParams(), {"max_tokens": 3}], "params is dict"),
        ({"max_tokens": 3}, "params is dict"),
        ([SamplingParams(), SamplingParams(max_tokens=0)], "max_tokens is 0"),
    ],
)
def test_parameters_that_do_not_fit_the_prompts_are_named(params, says, llm):
    with pytest.raises(ConfigError) as caught:
        llm.generate(["abc", "abd"], params)
    one_sentence(caught.value, says)


def test_totals_count_a_round_of_a_batch_once(llm):
    own = llm.with_options(max_num_seqs=2)
    assert own.totals.to_dict() == Stats().to_dict()
    answers = own.generate(["abc", "hello there", "one more"], SamplingParams(max_tokens=16, ignore_eos=True))
    total = own.totals
    for name in ("tokens", "prompt_tokens", "prefill_tokens", "drafted_tokens", "accepted_tokens", "committed_tokens"):
        assert getattr(total, name) == sum(getattr(a.stats, name) for a in answers), name
    assert max(a.stats.rounds for a in answers) < total.rounds < sum(a.stats.rounds for a in answers)
    assert total.query_tokens > max(a.stats.query_tokens for a in answers)
    parts = (total.prefill_seconds, total.draft_seconds, total.verify_seconds, total.accept_seconds)
    assert all(part > 0 for part in parts)
    assert sum(parts) <= total.seconds
    assert own.totals is not total
    assert llm.with_options().totals.rounds == 0
