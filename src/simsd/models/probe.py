"""Whether a module can be run in blocks, measured on four tokens: its mask, its positions, its cache, its head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from simsd.errors import ModelError
from simsd.models.protocol import Model

_ROWS = 4


def check(model: Model, module: Any, name: str) -> None:
    """Runs `module` by itself and as `model`, and compares.

    Args:
        module: called as `module(input_ids=, attention_mask=, position_ids=, use_cache=False).logits`.

    Raises:
        ModelError: the module does not do what blocks need; the message says what.
    """
    try:
        reason = _reason(model, module)
    except Exception as error:  # foreign code: it may raise anything
        if model.dtype == torch.float64 and "double" in str(error).lower():
            raise ModelError(
                f"{name} cannot be run in float64 ({type(error).__name__}: {error}); load it in float32 or bfloat16."
            ) from error
        raise ModelError(
            f"{name} cannot be run with a 4-D mask, position ids and a cache ({type(error).__name__}: {error}); "
            "load it with attn_implementation='sdpa', if it has that."
        ) from error
    if reason:
        raise ModelError(f"{name} cannot be run in blocks: {reason}.")


def _reason(model: Model, module: Any) -> str | None:
    ids = torch.arange(1, _ROWS + 1, device=model.device)[None]
    order = torch.arange(_ROWS, device=model.device)[None]
    block = order[0] // 2  # two blocks of two
    bias = torch.zeros(1, 1, _ROWS, _ROWS, dtype=model.dtype, device=model.device)
    bias.masked_fill_(block[:, None] < block[None, :], -torch.inf)

    def whole(tokens: Tensor, places: Tensor) -> Tensor:
        given = {"input_ids": tokens, "attention_mask": bias, "position_ids": places}
        return module(**given, use_cache=False).logits[0].to(torch.promote_types(model.dtype, torch.float32))

    def in_two_parts() -> Tensor:
        cache, rows = model.make_cache(1, _ROWS), []
        for at in (0, 2):
            part, end = slice(at, at + 2), at + 2
            hidden = model.forward(ids[:, part], order[:, part], bias[..., part, :end], cache, at, end)
            rows.append(model.head(hidden)[0])
        return torch.cat(rows)

    def first_row_moves_with(place: int) -> Tensor:
        other = ids.clone()
        other[0, place] = _ROWS + 1
        return (whole(other, order)[0] - plain[0]).abs().max()

    plain = whole(ids, order)
    rounding = torch.finfo(model.dtype).eps ** 0.5 * plain.abs().max()
    by_hidden = first_row_moves_with(3)  # with experts, its own sums may run in another order
    if not by_hidden <= rounding:
        return "a row sees a token that the mask hides"
    if not first_row_moves_with(1) > 4 * by_hidden:
        return "a row does not see the token behind it, though the mask shows it"
    if torch.equal(plain, whole(ids, order * order)):
        return "it does not heed position_ids"
    if not (in_two_parts() - plain).abs().max() <= rounding:
        return "its logits with a cache are not those without"
    return None
