"""Asks an `LLM` many prompts, and hands each answer out as soon as it is there."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from simsd.engine.generation import Generation
from simsd.errors import PromptError, SimsdError
from simsd.llm import LLM, Completion, SamplingParams

WARM_BLOCKS = 4  # of an unmeasured answer


def warm_up(llm: LLM, prompts: Sequence[Any], params: Sequence[SamplingParams]) -> None:
    """Begins the longest prompts, as many as go side by side: kernels are chosen then, and forwards measured.

    In caches of its own: what is measured later must not find its prompts there. prompts, params: as in `answers`.
    """
    own = llm.with_options()
    most = WARM_BLOCKS * llm.options.block_length
    longest = sorted(range(len(prompts)), key=lambda at: _size(prompts[at]), reverse=True)[: llm.max_num_seqs]
    short = [replace(params[at], max_tokens=min(params[at].max_tokens, most)) for at in longest]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the same requests come again
        for _ in answers(own, [prompts[at] for at in longest], short):
            pass


def _size(prompt: Any) -> int:
    """Roughly how long a prompt is; longer ones of one kind have a larger size."""
    texts = [message["content"] for message in prompt if isinstance(message, dict)]
    return sum(map(len, texts)) if texts else len(prompt)


def answers(
    llm: LLM, prompts: Sequence[Any], params: Sequence[SamplingParams]
) -> Generator[tuple[int, Completion], None, None]:
    """Each prompt's place and completion, in the order in which they end; all share the batch.

    prompts: text, ids or conversations, as `LLM.open` takes them; params: one a prompt. A prompt that fails does so
    alone: its completion carries `error`. Leaving early cancels what still runs. Raises: ConfigError.
    """
    running: dict[int, Generation] = {}
    failed: dict[int, Completion] = {}
    for place, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
        try:
            running[place] = llm.open(prompt, one)
        except PromptError as error:
            failed[place] = _failed(error)
    yield from failed.items()
    for generation in running.values():
        generation.start()
    try:
        while running:
            llm.step()
            for place in [place for place, generation in running.items() if generation.ended]:
                yield place, running.pop(place).completion()
    finally:
        for generation in running.values():
            generation.cancel()


def _failed(error: SimsdError) -> Completion:
    return Completion("", "", [], "error", error=error)
