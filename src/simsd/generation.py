"""`simsd.generate`: speculative decoding of a loaded module behind the interface of transformers' own `generate`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from simsd.engine.options import SamplingParams
from simsd.errors import ConfigError, PromptError
from simsd.llm import LLM

# What transformers builds from the generation config, and this function reads from there itself.
_KNOWN_PROCESSORS = {"TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "InfNanRemoveLogitsProcessor"}
_KNOWN_CRITERIA = {"MaxLengthCriteria", "EosTokenCriteria"}
_PASSED_ON = {"attention_mask", "position_ids", "cache", "past_key_values", "use_cache", "logits_to_keep"}


def generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any = (),
    stopping_criteria: Any = (),
    generation_config: Any = None,
    *,
    draft_model: Any = None,
    assistant_model: Any = None,
    method: str = "exact",
    block_length: int | None = None,
    mask_token_id: int | None = None,
    shifted_logits: bool = False,
    decoding: dict[str, Any] | None = None,
    **more: Any,
) -> Tensor:
    """Prompts and answers as ids `[N, longest]`, filled up with the padding id on the right, as in transformers.

    Use it as `model.generate(ids, custom_generate=simsd.generate, draft_model=draft, max_new_tokens=64)`, or call it.
    Of the generation config it heeds the lengths, `do_sample`, `temperature`, `top_k`, `top_p`, the stop ids and the
    padding id; the seed comes from torch's generator, so `torch.manual_seed` makes it repeatable.

    Args:
        model: the target, a causal language model of transformers; what it must be able to do: `huggingface.wrap`.
        input_ids: `[N, T]`.
        draft_model: the draft model; `assistant_model` means the same (but transformers keeps that one to itself).
        method, block_length, mask_token_id, shifted_logits: as in `LLM`.
        decoding: further options of `LLM`, such as `{"remasking_strategy": "low_confidence_dynamic"}`.
        more: `attention_mask=` `[N, T]`, 0 where a prompt is filled up on the left, and what transformers passes along.

    Raises:
        ConfigError: what is asked for cannot be honoured: beams, other logits processors or stopping criteria.
        ModelError, PairError, PromptError: as `LLM`.
    """
    config = model.generation_config if generation_config is None else generation_config
    _refuse(config, logits_processor, stopping_criteria, more)
    draft = assistant_model if draft_model is None else draft_model
    options: dict[str, Any] = {"method": method, "max_num_seqs": max(len(input_ids), 1), **(decoding or {})}
    sizes: dict[str, Any] = {"block_length": block_length, "mask_token_id": mask_token_id}
    llm = LLM(model, draft_model=draft, shifted_logits=shifted_logits, **sizes, **options)
    prompts = _prompts(input_ids, more.get("attention_mask"))
    params = [_params(config, input_ids.shape[1], llm.config.stop_token_ids) for _ in prompts]
    answers = []
    for completion in llm.generate(prompts, params):
        if completion.error is not None:
            raise completion.error
        end = [] if completion.stop_token_id is None else [completion.stop_token_id]
        answers.append(completion.token_ids + end)
    longest = max(map(len, answers))
    padding = _first(config.pad_token_id, _first(config.eos_token_id, 0))
    filled = [answer + [padding] * (longest - len(answer)) for answer in answers]
    return torch.cat((input_ids, torch.tensor(filled, dtype=input_ids.dtype, device=input_ids.device)), 1)


def _params(config: Any, prompt_length: int, own_stop_ids: tuple[int, ...]) -> SamplingParams:
    """The sampling parameters that the generation config stands for; each has a seed of its own."""
    longest = config.max_new_tokens
    if longest is None:
        longest = (config.max_length or 20 + prompt_length) - prompt_length
    eos = config.eos_token_id
    stop = own_stop_ids if eos is None else eos if isinstance(eos, list | tuple) else (eos,)
    seed = int(torch.randint(2**62, ()))
    if not config.do_sample:
        return SamplingParams(max_tokens=longest, stop_token_ids=stop, ignore_eos=True, seed=seed)
    return SamplingParams(
        max_tokens=longest,
        temperature=1.0 if config.temperature is None else config.temperature,
        top_k=config.top_k or 0,
        top_p=1.0 if config.top_p is None else config.top_p,
        stop_token_ids=stop,
        ignore_eos=True,
        seed=seed,
    )


def _prompts(input_ids: Tensor, attention_mask: Tensor | None) -> list[list[int]]:
    """Each row's ids, without what fills it up on the left."""
    if input_ids.dim() != 2:
        raise PromptError(f"input_ids is {list(input_ids.shape)}; it must be [prompts, tokens]")
    if attention_mask is None:
        return input_ids.tolist()
    real = attention_mask.bool()
    if real.shape != input_ids.shape or (real[:, :-1] & ~real[:, 1:]).any():
        raise PromptError("attention_mask must have the shape of input_ids, and zeros only on the left of each prompt")
    return [row[keep].tolist() for row, keep in zip(input_ids, real, strict=True)]


def _refuse(config: Any, logits_processor: Any, stopping_criteria: Any, more: dict[str, Any]) -> None:
    names = [type(p).__name__ for p in logits_processor or ()]
    others = [name for name in names if name not in _KNOWN_PROCESSORS]
    others += [type(c).__name__ for c in stopping_criteria or () if type(c).__name__ not in _KNOWN_CRITERIA]
    others += [name for name, value in more.items() if name not in _PASSED_ON and value is not None]
    if others:
        raise ConfigError(f"simsd.generate does not support {', '.join(others)}; leave it out of the call")
    if (config.num_beams or 1) > 1:
        raise ConfigError(f"num_beams is {config.num_beams}; block diffusion has no beams, so leave it at 1")


def _first(ids: Any, default: int) -> int:
    if ids is None:
        return default
    return int(ids[0]) if isinstance(ids, list | tuple) else int(ids)
