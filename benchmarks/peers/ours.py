"""simsd itself as a peer, so that it is timed as all others are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simsd import LLM, SamplingParams


def load(
    model: str = "tiny", draft_model: str | None = None, *, prefix_caching: bool = False, **options: Any
) -> Callable[[list[int], int], list[int]]:
    """options: of `simsd.LLM`, and temperature, remasking_strategy ... of `simsd.SamplingParams`.

    prefix_caching: off, as in a script that answers one prompt for another.
    """
    sampling = {name: options.pop(name) for name in list(options) if name in SamplingParams.__dataclass_fields__}
    llm = LLM(model, draft_model=draft_model, prefix_caching=prefix_caching, **options)

    def answer(ids: list[int], max_tokens: int) -> list[int]:
        return llm.generate([ids], SamplingParams(**sampling, max_tokens=max_tokens))[0].token_ids

    return answer
