"""How likely a walk over a set of states is to come by each of them, as the draft sees it (method section 4b).

Exactness never depends on these numbers: they only choose which states are worth their query tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from simsd.core.draft import Draft
from simsd.core.states import States

# A draft foresees tokens far better than their order: among confidences near 1 the order is nearly noise. Dividing the
# log-odds by this, rather than taking them at their word, raised the tokens per forward at equal query tokens.
ORDER_SOFTENING = 4.0


def _moves(table: Tensor) -> Tensor:
    """[C, U] the code that code c becomes by step u; C (a sink) where that is not in the table or u is taken."""
    count, units = table.shape
    after = table[:, None] | torch.eye(units, dtype=torch.bool, device=table.device)  # [C, U, U]
    same = (after[:, :, None] == table).all(-1) & ~table[..., None]  # [C, U, C]
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
        table = table.to(doubt.device)
        count, units = table.shape
        unit = torch.arange(1, units + 1, device=doubt.device)
        member = drafted[:, w, None] & (local[:, w, None] == unit[:, None])  # [N, U, B]
        worst = torch.where(member, doubt[:, w, None], -torch.inf).amax(-1)  # -inf: no such step
        sure = torch.sigmoid(-worst)
        score = torch.where(member.any(-1), -worst / ORDER_SOFTENING, -torch.inf)[:, None].expand(-1, count, -1)
        choice = score.masked_fill(table, -torch.inf).softmax(-1).nan_to_num(0.0) * sure[:, None]  # [N, C, U]
        wave = torch.zeros(doubt.shape[0], count + 1, device=doubt.device, dtype=doubt.dtype)
        wave[:, :1] = entering
        total = wave
        target = _moves(table).view(1, -1).expand(doubt.shape[0], -1)
        for _ in range(units):
            flow = (wave[:, :count, None] * choice).flatten(1)
            wave = torch.zeros_like(wave).scatter_add_(1, target, flow)
            wave[:, count] = 0
            total = total + wave
        result.append(total[:, :count])
        ends = (table | (unit > (local[:, w] * drafted[:, w]).amax(-1, keepdim=True))[:, None]).all(-1)
        entering = (total[:, :count] * ends).amax(-1, keepdim=True)
    return result


def keep_likely(states: States, draft: Draft, tables: Sequence[Tensor], least: float) -> States:
    """Marks as unused the states that a walk comes by with less than that probability; the root always stays."""
    likely = torch.cat(visits(draft, tables), 1) >= least
    front = torch.ones_like(likely[:, : states.in_place])
    keep = torch.cat((front, likely), 1)
    keep[:, states.root] = True
    valid = states.valid & keep
    # a finished state serves only the states of later blocks that are left
    for w in reversed(range(states.in_place)):
        valid[:, w] &= (valid & (states.block > w)).any(1)
    return replace(states, valid=valid)
