"""`simsd.generate`, called by transformers and directly: ids as transformers returns them, and clear refusals."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import TemperatureLogitsWarper
from transformers.generation.stopping_criteria import MaxLengthCriteria

import simsd
from simsd import ConfigError, PromptError, SamplingParams, generation_config
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
        ({"cache_implementation": "dynamic"}, "cache_implementation is 'dynamic'"),
        ({"return_dict_in_generate": True}, "return_dict_in_generate is True"),
        ({"position_ids": torch.arange(3, 8)[None].expand(2, -1)}, "position_ids are not those"),
        ({"logits_processor": [TemperatureLogitsWarper(2.0)], "do_sample": True}, "support TemperatureLogitsWarper"),
        ({"stopping_criteria": [MaxLengthCriteria(6)]}, "does not support MaxLengthCriteria"),
    ],
)
def test_what_cannot_be_honoured_is_refused(module: Any, asked: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        module.generate(IDS, max_new_tokens=4, **GIVEN, **asked)


# Of each field a value that would change the text, or what is returned.
UNSUPPORTED: dict[str, Any] = {
    "num_beams": 2,
    "num_beam_groups": 2,
    "diversity_penalty": 0.5,
    "repetition_penalty": 1.3,
    "encoder_repetition_penalty": 1.3,
    "no_repeat_ngram_size": 2,
    "encoder_no_repeat_ngram_size": 2,
    "suppress_tokens": [0],
    "begin_suppress_tokens": [0],
    "bad_words_ids": [[0]],
    "force_words_ids": [[0]],
    "sequence_bias": [[[0], 1.0]],
    "min_length": 9,
    "min_new_tokens": 3,
    "forced_bos_token_id": 0,
    "forced_eos_token_id": 0,
    "stop_strings": ["a"],
    "max_time": 0.5,
    "guidance_scale": 1.5,
    "min_p": 0.1,
    "typical_p": 0.9,
    "epsilon_cutoff": 0.1,
    "eta_cutoff": 0.1,
    "exponential_decay_length_penalty": (2, 1.5),
    "watermarking_config": {"bias": 2.5},
    "token_healing": True,
    "penalty_alpha": 0.6,
    "dola_layers": "low",
    "prompt_lookup_num_tokens": 2,
    "assistant_early_exit": 1,
    "constraints": [1],
    "prefill_chunk_size": 4,
    "cache_implementation": "static",
    "max_cache_len": 64,
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
    "output_attentions": True,
    "output_hidden_states": True,
}


def configured(**fields: Any) -> Any:
    """Not by the constructor, which takes some of them only together."""
    config = GenerationConfig()
    for name, value in fields.items():
        setattr(config, name, value)
    return config


@pytest.mark.parametrize("field", list(UNSUPPORTED))
def test_no_field_of_the_config_is_passed_over(module: Any, field: str):
    value = UNSUPPORTED[field]
    config = configured(max_new_tokens=4, **{field: value})
    with pytest.raises(ConfigError, match=f"^{field} is "):
        simsd.generate(module, IDS, generation_config=config, **SIZES)
    with pytest.raises(ConfigError, match=f"^{field} is "):
        simsd.generate(module, IDS, max_new_tokens=4, **{field: value}, **SIZES)


def test_every_field_of_this_version_is_thought_of():
    known = set(UNSUPPORTED) | generation_config._HONOURED | generation_config._WITHOUT_EFFECT
    later = {"top_h", "target_lookbehind", "use_mtp", "continuous_batching_config"}  # of newer versions
    assert generation_config.fields() - later <= known


def test_what_a_checkpoint_says_of_sampling_changes_nothing_where_it_is_off(module: Any):
    config = configured(
        max_new_tokens=9, do_sample=False, temperature=0.6, top_k=20, top_p=0.95, repetition_penalty=1.0
    )
    found = simsd.generate(module, IDS, generation_config=config, **SIZES)
    assert found[:, 5:].tolist() == answers(module, IDS.tolist(), 9)


def test_called_directly_it_takes_the_names_of_transformers(module: Any):
    found = simsd.generate(module, IDS.tolist(), max_new_tokens=9, num_return_sequences=2, **SIZES)
    assert found[:, 5:].tolist() == [row for row in answers(module, IDS.tolist(), 9) for _ in range(2)]
    assert found[:, :5].tolist() == IDS.repeat_interleave(2, 0).tolist()
    torch.manual_seed(3)
    config = configured(max_new_tokens=4, do_sample=False)
    sampled = simsd.generate(
        module, IDS[1:], generation_config=config, do_sample=True, temperature=2.0, num_return_sequences=3, **SIZES
    )
    assert len({tuple(row) for row in sampled.tolist()}) == 3
    assert config.do_sample is False  # the caller's own stays as it is


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"draft_model": 1, "assistant_model": 2}, "draft_model and assistant_model mean the same"),
        ({"decoding": {"block_length": 4}}, "decoding has 'block_length'; give it as block_length="),
        ({"decoding": {"method": "none"}}, "decoding has 'method'; give it as method="),
        ({"decoding": [1]}, r"decoding is \[1\]; it must be a dictionary"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5"),
        ({"max_new_tokens": None, "max_length": 5}, "max_length is 5, but the prompt has 5 tokens"),
        ({"logits_processor": [TemperatureLogitsWarper(1.0)]}, "support TemperatureLogitsWarper"),
        ({"stopping_criteria": [MaxLengthCriteria(6)]}, "support MaxLengthCriteria"),
        ({"tokenizer": "t"}, "support tokenizer"),
        ({"max_tokens": 5}, "support max_tokens"),
    ],
)
def test_calls_that_contradict_themselves_are_refused(module: Any, asked: dict[str, Any], words: str):
    given: dict[str, Any] = {"max_new_tokens": 4} | SIZES | asked
    with pytest.raises(ConfigError, match=words):
        simsd.generate(module, IDS, **given)


def test_a_cache_of_the_callers_own_is_refused(module: Any):
    cache = module(IDS, use_cache=True).past_key_values
    with pytest.raises(ConfigError, match="support past_key_values"):
        simsd.generate(module, IDS, past_key_values=cache, max_new_tokens=4, **SIZES)
    with pytest.raises(ConfigError, match=r"support (cache|past_key_values)"):
        module.generate(torch.cat((IDS, IDS), 1), past_key_values=cache, max_new_tokens=4, **GIVEN)


class Streamer:
    """What was put, and how often the end came."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.ended = 0

    def put(self, value: Any) -> None:
        assert not self.ended
        self.values.append(value)

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("within", [False, True])
def test_a_streamer_gets_the_prompt_and_then_each_token(module: Any, within: bool):
    """transformers keeps `streamer=` to itself, so there it is bound to the function."""
    streamer, prompt = Streamer(), IDS[1:]
    free = answers(module, prompt.tolist(), 12)[0]
    asked: dict[str, Any] = {"max_new_tokens": 12, "eos_token_id": [free[9]], **SIZES}
    if within:
        found = module.generate(prompt, custom_generate=partial(simsd.generate, streamer=streamer), **asked)
    else:
        found = simsd.generate(module, prompt, streamer=streamer, **asked)
    first, *rest = streamer.values
    assert torch.equal(first, prompt)
    assert [value.shape for value in rest] == [(1,)] * len(rest)
    assert [int(value) for value in rest] == found[0, 5:].tolist()
    assert found[0, -1] == free[9]
    assert streamer.ended == 1


def test_a_streamer_gets_tokens_before_the_answer_is_finished(module: Any):
    class StoppedError(Exception):
        pass

    class Once(Streamer):
        def put(self, value: Any) -> None:
            super().put(value)
            if len(self.values) == 3:
                raise StoppedError

    streamer = Once()
    with pytest.raises(StoppedError):
        simsd.generate(module, IDS[1:], streamer=streamer, max_new_tokens=200, **SIZES)
    assert streamer.ended == 1


@pytest.mark.parametrize("asked", [{"num_beams": 2}, {"max_new_tokens": 0}, {"method": "fast"}, {"many": True}])
def test_a_streamer_is_ended_whatever_happens(module: Any, asked: dict[str, Any]):
    streamer = Streamer()
    prompts = IDS if asked.pop("many", False) else IDS[1:]
    given: dict[str, Any] = {"max_new_tokens": 4} | SIZES | asked
    with pytest.raises(ConfigError):
        simsd.generate(module, prompts, streamer=streamer, **given)
    assert (streamer.values, streamer.ended) == ([], 1)


def test_a_version_that_hands_the_streamer_on_has_given_it_the_prompt(module: Any):
    streamer = Streamer()
    simsd.generate(module, IDS[1:], streamer=streamer, synced_gpus=False, max_new_tokens=4, **SIZES)
    assert [value.shape for value in streamer.values] == [(1,)] * 4


def test_prompts_that_are_no_prompts(module: Any):
    config = GenerationConfig(max_new_tokens=4)
    with pytest.raises(PromptError, match=r"input_ids is \[5\]"):
        simsd.generate(module, IDS[0], generation_config=config, **SIZES)
    with pytest.raises(PromptError, match="zeros only on the left"):
        simsd.generate(module, IDS, generation_config=config, attention_mask=REAL.flip(1), **SIZES)
    with pytest.raises(PromptError, match="MASK"):
        simsd.generate(module, torch.tensor([[1, MASK]]), generation_config=config, **SIZES)
    for empty in (torch.zeros(1, 0, dtype=torch.long), torch.zeros(0, 3, dtype=torch.long), [], [[]]):
        with pytest.raises(PromptError, match="with one of each or more"):
            simsd.generate(module, empty, generation_config=config, **SIZES)
    for other in (None, "text", [[1, 2], [3]], [["a"]]):
        with pytest.raises(PromptError, match="input_ids cannot be read"):
            simsd.generate(module, other, generation_config=config, **SIZES)  # type: ignore[arg-type]
    with pytest.raises(PromptError, match=r"float32; it must be whole numbers"):
        simsd.generate(module, [[1.5]], generation_config=config, **SIZES)  # type: ignore[list-item]
