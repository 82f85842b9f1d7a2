"""How likely a walk over a set of states is to come by each of them, as the draft sees it (method section 4b).

Exactness never depends on these numbers: they only choose which states are worth their query tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from simsd.core.draft import Draft
from simsd.core.states import States, without_idle
from simsd.core.tensors import on_device

# A draft foresees tokens far better than their order: among confidences near 1 the order is nearly noise. Dividing the
# log-odds by this, rather than taking them at their word, raised the tokens per forward at equal query tokens.
ORDER_SOFTENING = 4.0


@cache  # of the object: the same few tables come in every round
def _moves(known: Tensor) -> Tensor:
    """[C, U] the code that code c becomes by step u; C (a sink) where that is not in the table or u is taken."""
    count, units = known.shape
    after = known[:, None] | torch.eye(units, dtype=torch.bool)  # [C, U, U]
    same = (after[:, :, None] == known).all(-1) & ~known[..., None]  # [C, U, C]
    return torch.where(same.any(-1), same.long().argmax(-1), count)


def visits(draft: Draft, tables: Sequence[Tensor]) -> list[Tensor]:
    """For each block w of the window, the probability [N, C_w] that the walk comes by each code of `tables[w]`.

    A step u is taken next with a probability that grows with the odds c / (1 - c) of its confidence c (softened, see
    `ORDER_SOFTENING`), and the walk goes on with probability c, that the token is right too. Steps of several tokens
    count with their least sure one.
    """
    doubt = draft.doubt
    if doubt is None:
        raise ValueError("this draft has no confidences to judge its states by")
    local, drafted = draft.local_step(), draft.drafted
    result: list[Tensor] = []
    entering = doubt.new_ones(doubt.shape[0], 1)
    for w, table in enumerate(tables):
        count, units = table.shape
        moves = on_device(_moves(table), doubt.device)
        table = on_device(table, doubt.device)
        unit = torch.arange(1, units + 1, device=doubt.device)
        member = drafted[:, w, None] & (local[:, w, None] == unit[:, None])  # [N, U, B]
        worst = torch.where(member, doubt[:, w, None], -torch.inf).amax(-1)  # -inf: no such step
        sure = torch.sigmoid(-worst)
        score = torch.where(member.any(-1), -worst / ORDER_SOFTENING, -torch.inf)[:, None].expand(-1, count, -1)
        choice = score.masked_fill(table, -torch.inf).softmax(-1).nan_to_num(0.0) * sure[:, None]  # [N, C, U]
        wave = torch.zeros(doubt.shape[0], count + 1, device=doubt.device, dtype=doubt.dtype)
        wave[:, :1] = entering
        total = wave
        target = moves.view(1, -1).expand(doubt.shape[0], -1)
        for _ in range(units):
            flow = (wave[:, :count, None] * choice).flatten(1)
            wave = torch.zeros_like(wave).scatter_add_(1, target, flow)
            total = total + wave
        result.append(total[:, :count])
        ends = (table | (unit > (local[:, w] * drafted[:, w]).amax(-1, keepdim=True))[:, None]).all(-1)
        entering = (total[:, :count] * ends).amax(-1, keepdim=True)
    return result


def keep_likely(states: States, chance: Tensor, least: float) -> States:
    """Marks as unused the states that a walk comes by with less than that probability; the root always stays.

    chance: [N, C] of the states behind those in place, as `visits` gives them, block after block.
    """
    keep = torch.cat((torch.ones_like(states.valid[:, : states.in_place]), chance >= least), 1)
    keep[:, states.root].fill_(True)
    return without_idle(replace(states, valid=states.valid & keep))
