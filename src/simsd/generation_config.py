"""What a generation config of transformers asks for: what is honoured, and the refusal of all else."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from torch import Tensor

from simsd.errors import ConfigError

_HONOURED = frozenset(
    (
        *("max_new_tokens", "max_length", "do_sample", "temperature", "top_k", "top_p", "num_return_sequences"),
        *("eos_token_id", "pad_token_id"),
    )
)
# These change nothing in a text that is decoded without beams, or say how another way of decoding would be run.
_WITHOUT_EFFECT = frozenset(
    (
        *("use_cache", "bos_token_id", "decoder_start_token_id", "remove_invalid_values", "renormalize_logits"),
        *("early_stopping", "length_penalty", "compile_config", "disable_compile", "transformers_version"),
        *("is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
        *("assistant_lookbehind", "target_lookbehind", "max_matching_ngram_size", "assistant_ensemble_weight"),
        *("cache_config", "low_memory", "speculation_type"),
    )
)
# Numbers that switch the field off; for all others that is None, False or an empty list.
_OFF: Mapping[str, float] = MappingProxyType(
    {
        **dict.fromkeys(("num_beams", "num_beam_groups", "repetition_penalty", "encoder_repetition_penalty"), 1),
        **dict.fromkeys(("typical_p", "guidance_scale"), 1),
        **dict.fromkeys(("min_length", "min_new_tokens", "min_p", "diversity_penalty", "penalty_alpha"), 0),
        **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "epsilon_cutoff", "eta_cutoff"), 0),
    }
)
# What transformers makes of the fields that are honoured, each with the one that it must agree with.
_MADE = MappingProxyType(
    {
        "TemperatureLogitsWarper": "temperature",
        "TopKLogitsWarper": "top_k",
        "TopPLogitsWarper": "top_p",
        "MaxLengthCriteria": "max_length",
        "EosTokenCriteria": "eos_token_id",
        "InfNanRemoveLogitsProcessor": None,
    }
)
_PASSED_ON = frozenset(("logits_to_keep", "synced_gpus"))
_CACHES = ("cache", "past_key_values")


def check(config: Any, logits_processor: Any, stopping_criteria: Any, more: Mapping[str, Any]) -> None:
    """Refuses what cannot be honoured. more: what else the function was called with.

    Raises: ConfigError, which names it.
    """
    if (config.num_beams or 1) > 1:
        raise ConfigError(f"num_beams is {config.num_beams}; block diffusion has no beams, so leave it at 1")
    added = [*(logits_processor or ()), *(stopping_criteria or ())]
    others = [type(one).__name__ for one in added if not (is_prepared(config) and _made(one, config))]
    others += [name for name, value in more.items() if not _passed_on(name, value)]
    if others:
        raise ConfigError(f"simsd.generate does not support {', '.join(others)}; leave it out of the call")
    for name in sorted(fields() - _HONOURED - _WITHOUT_EFFECT):
        value = getattr(config, name, None)
        if not _off(name, value):
            raise ConfigError(f"{name} is {value!r}, which simsd.generate does not support; leave it out")


@cache
def fields() -> set[str]:
    """Names of the fields of a generation config."""
    from transformers import GenerationConfig

    return {name for name in vars(GenerationConfig()) if not name.startswith("_")} | _HONOURED | set(_OFF)


def is_prepared(config: Any) -> bool:
    """Whether transformers' own `generate` made this config: then prompts are repeated, and processors made, by it."""
    return hasattr(config, "_eos_token_tensor")


def listed(ids: Any) -> list[int]:
    """Ids, or one, or None, as a list."""
    if ids is None:
        return []
    ids = ids.tolist() if isinstance(ids, Tensor) else ids
    return [int(one) for one in ids] if isinstance(ids, list | tuple) else [int(ids)]


def _off(name: str, value: Any) -> bool:
    if value is None or value is False or (isinstance(value, list | tuple | dict | set) and not value):
        return True
    return name in _OFF and not isinstance(value, bool) and value == _OFF[name]


def _passed_on(name: str, value: Any) -> bool:
    if name in _CACHES:  # transformers makes an empty one itself
        return value is None or value.get_seq_length() == 0
    return name in _PASSED_ON or value is None or value is False


def _made(one: Any, config: Any) -> bool:
    """Whether transformers made this processor or criterion from the config, and not the caller."""
    kind = type(one).__name__
    field = _MADE.get(kind)
    if field is None:
        return kind in _MADE
    own, wanted = getattr(one, field), getattr(config, field)
    if field == "eos_token_id":
        return sorted(own.flatten().tolist()) == sorted(listed(wanted))
    return own == wanted
