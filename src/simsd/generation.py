"""`simsd.generate`: speculative decoding of a loaded module behind the interface of transformers' own `generate`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from simsd.engine.options import SamplingParams
from simsd.errors import ConfigError, PromptError
from simsd.generation_config import check, fields, is_prepared, listed
from simsd.llm import LLM

if TYPE_CHECKING:
    from collections.abc import Iterator

_OWN = ("draft_model", "method", "block_length", "mask_token_id", "shifted_logits")  # not in `decoding`, too


def generate(
    model: Any,
    input_ids: Tensor | Sequence[Sequence[int]],
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
    streamer: Any = None,
    **more: Any,
) -> Tensor:
    """Prompts and answers as ids `[N, longest]`, filled up with the padding id on the right, as in transformers.

    Use it as `model.generate(ids, custom_generate=simsd.generate, draft_model=draft, max_new_tokens=64)`, or call it.
    Of the generation config it heeds the lengths, `do_sample`, `temperature`, `top_k`, `top_p`, the stop ids, the
    padding id and `num_return_sequences`; the seed comes from torch's generator, so `torch.manual_seed` makes it
    repeatable.

    Args:
        model: the target, a causal language model of transformers; what it must be able to do: `huggingface.wrap`.
        input_ids: `[N, T]`.
        draft_model: the draft model; `assistant_model` means the same (but transformers keeps that one to itself).
        method, block_length, mask_token_id, shifted_logits: as in `LLM`.
        decoding: further options of `LLM`, such as `{"remasking_strategy": "low_confidence_dynamic"}`.
        streamer: of transformers, for one prompt: it gets the prompt, then each token of the answer as its block is
            finished, and its end whatever happens (but transformers keeps this one to itself, too).
        more: fields of the generation config, such as `max_new_tokens=`; `attention_mask=` `[N, T]`, 0 where a prompt
            is filled up on the left; and what transformers passes along.

    Raises:
        ConfigError: what is asked for cannot be honoured: beams, penalties, logits processors, stopping criteria.
        ModelError, PairError, PromptError: as `LLM`.
    """
    with _ended(streamer):
        config = copy.copy(model.generation_config if generation_config is None else generation_config)
        for name in fields() & set(more):
            setattr(config, name, more.pop(name))
        ids = _ids(input_ids, model.device)
        prompts = _prompts(ids, more.pop("attention_mask", None), more.pop("position_ids", None))
        told = "synced_gpus" in more  # transformers 4.56 hands the streamer on, and has given it the prompt
        check(config, logits_processor, stopping_criteria, more)
        if not is_prepared(config) and (copies := config.num_return_sequences or 1) > 1:
            ids = ids.repeat_interleave(copies, 0)
            prompts = [prompt for prompt in prompts for _ in range(copies)]
        if streamer is not None and len(prompts) > 1:
            raise ConfigError(f"streamer is for one answer, but {len(prompts)} are asked for; leave it out")
        options = _options(decoding, max_num_seqs=len(prompts), method=method)
        options |= {"block_length": block_length, "mask_token_id": mask_token_id, "shifted_logits": shifted_logits}
        llm = LLM(model, draft_model=_draft(draft_model, assistant_model), **options)
        stop = llm.config.stop_token_ids if config.eos_token_id is None else listed(config.eos_token_id)
        params = [_params(config, ids.shape[1], stop) for _ in prompts]
        if streamer is None:
            answers = _answers(llm, prompts, params)
        else:
            if not told:
                streamer.put(ids.cpu())
            answers = [_streamed(llm, prompts[0], params[0], streamer)]
    padding = listed(config.pad_token_id) or stop or (0,)
    longest = max(map(len, answers))
    filled = [answer + [padding[0]] * (longest - len(answer)) for answer in answers]
    return torch.cat((ids, torch.tensor(filled, dtype=ids.dtype, device=ids.device)), 1)


@contextmanager
def _ended(streamer: Any) -> Iterator[None]:
    """Whoever reads what the streamer gets waits for its end, also where something fails."""
    try:
        yield
    finally:
        if streamer is not None:
            streamer.end()


def _answers(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> list[list[int]]:
    answers = []
    for completion in llm.generate(prompts, params):
        if completion.error is not None:
            raise completion.error
        answers.append(completion.token_ids + listed(completion.stop_token_id))
    return answers


def _streamed(llm: LLM, prompt: list[int], params: SamplingParams, streamer: Any) -> list[int]:
    """The answer, of which the streamer got each token by itself, as from transformers."""
    answer: list[int] = []
    for piece in llm.stream(prompt, params):
        end = [] if piece.completion is None else listed(piece.completion.stop_token_id)
        for token in piece.token_ids + end:
            streamer.put(torch.tensor([token]))
            answer.append(token)
    return answer


def _draft(draft_model: Any, assistant_model: Any) -> Any:
    if draft_model is not None and assistant_model is not None:
        raise ConfigError("draft_model and assistant_model mean the same; give one of them")
    return assistant_model if draft_model is None else draft_model


def _options(decoding: Any, **own: Any) -> dict[str, Any]:
    """Options of `LLM`: those in `decoding`, and what holds where it is silent."""
    if not isinstance(decoding, dict | None):
        raise ConfigError(f"decoding is {decoding!r}; it must be a dictionary with options of LLM")
    for name in _OWN:
        if name in (decoding or {}):
            raise ConfigError(f"decoding has {name!r}; give it as {name}=")
    return own | (decoding or {})


def _params(config: Any, prompt_length: int, stop: Sequence[int]) -> SamplingParams:
    """The sampling parameters that the generation config stands for; each has a seed of its own."""
    longest = config.max_new_tokens
    if longest is None:
        longest = (config.max_length or 20 + prompt_length) - prompt_length
        if longest < 1:
            raise ConfigError(f"max_length is {config.max_length}, but the prompt has {prompt_length} tokens; raise it")
    elif isinstance(longest, bool) or not isinstance(longest, int) or longest < 1:
        raise ConfigError(f"max_new_tokens is {longest!r}; it must be a whole number of 1 or more")
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


def _ids(input_ids: Any, device: torch.device) -> Tensor:
    """`[N, T]`, N and T at least 1, on the model's device where they are a list."""
    try:
        ids = input_ids if isinstance(input_ids, Tensor) else torch.tensor(input_ids, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PromptError(f"input_ids cannot be read as [prompts, tokens]: {error}") from error
    if ids.dim() != 2 or ids.numel() == 0:
        raise PromptError(f"input_ids is {list(ids.shape)}; it must be [prompts, tokens], with one of each or more")
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise PromptError(f"input_ids is {ids.dtype}; it must be whole numbers")
    return ids


def _prompts(ids: Tensor, attention_mask: Any, position_ids: Any) -> list[list[int]]:
    """Each row's ids, without what fills it up on the left."""
    real = torch.ones_like(ids, dtype=torch.bool)
    if attention_mask is not None:
        real = torch.as_tensor(attention_mask, device=ids.device).bool()
        if real.shape != ids.shape or (real[:, :-1] & ~real[:, 1:]).any():
            raise PromptError("attention_mask must have the shape of input_ids, zeros only on the left of each prompt")
    if position_ids is not None:
        counted = real.long().cumsum(1) - 1
        given = torch.as_tensor(position_ids, device=ids.device)
        if given.shape[-1:] != ids.shape[-1:] or (given.expand_as(counted) != counted)[real].any():
            raise ConfigError("position_ids are not those of the prompts counted from 0; leave them out of the call")
    return [row[keep].tolist() for row, keep in zip(ids, real, strict=True)]
