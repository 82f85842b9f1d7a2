"""What happened in one round, kept for people to look at."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from simsd.core.acceptance import Outcome
from simsd.core.layout import Layout
from simsd.engine.batch import Round
from simsd.engine.verify import Plan

KNOWN, ACCEPTED, CORRECTED, BONUS, REJECTED, MASKED = (
    "known",
    "accepted",
    "corrected",
    "bonus",
    "rejected",
    "masked",
)


@dataclass(frozen=True)
class LayoutTrace:
    """The rows of the target's forward: ids, positions, a group label each, and which tail rows see which."""

    ids: list[int]
    positions: list[int]
    labels: list[str]
    mask: list[list[bool]]
    prefix_length: int


@dataclass(frozen=True)
class RoundTrace:
    """One round of one sequence, over a window of W blocks; lists of W * B entries, MASK id where unknown.

    draft_step: tau; 0 known, 1..n drafted, n + 1 not drafted.
    verdict: known; accepted (the draft's token kept); corrected (the target's token where another was drafted);
             bonus (a place the target revealed by itself); rejected (drafted, not kept, masked again); masked.
    """

    index: int
    block_start: int
    block_length: int
    mask_token_id: int
    before: list[int]
    drafted: list[int]
    draft_step: list[int]
    after: list[int]
    verdict: list[str]
    finished_blocks: int
    layout: LayoutTrace

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def record(row: int, now: Round, plan: Plan, layout: Layout, outcome: Outcome, used: int) -> RoundTrace:
    """The trace of sequence `row`, fill-up rows of the batch left out.

    used: places of the window that the sequence took over; an ended sequence leaves the rest.
    """
    draft, state = plan.draft, now.state
    after, drafted = outcome.tokens[row].flatten(), draft.tokens[row].flatten()
    before = torch.full_like(after, state.mask_id)
    before[: state.tokens.shape[1]] = state.tokens[row]
    put = draft.drafted[row].flatten()
    taken_over = torch.arange(len(after), device=after.device) < used
    after = torch.where(taken_over, after, before)
    new = (outcome.taken[row].flatten() >= 0) & taken_over
    kept = outcome.accepted[row].flatten() & taken_over
    verdicts = []
    for at in range(len(after)):
        if before[at] != state.mask_id:
            verdicts.append(KNOWN)
        elif kept[at]:
            verdicts.append(ACCEPTED)
        elif new[at]:
            verdicts.append(CORRECTED if put[at] and after[at] != drafted[at] else BONUS)
        else:
            verdicts.append(REJECTED if put[at] else MASKED)
    labels, rows = _labels(row, now, plan)
    return RoundTrace(
        index=int(now.salt[row]),
        block_start=int(state.start[row]),
        block_length=state.tokens.shape[1],
        mask_token_id=state.mask_id,
        before=before.tolist(),
        drafted=torch.where(put, drafted, state.mask_id).tolist(),
        draft_step=draft.step[row].flatten().tolist(),
        after=after.tolist(),
        verdict=verdicts,
        finished_blocks=min(int(outcome.finished[row]), used // state.tokens.shape[1]),
        layout=LayoutTrace(
            ids=layout.ids[row][rows].tolist(),
            positions=layout.positions[row][rows].tolist(),
            labels=labels,
            mask=layout.mask[row][rows][:, rows].tolist(),
            prefix_length=int(now.prefix.stored[row]),
        ),
    )


def _labels(row: int, now: Round, plan: Plan) -> tuple[list[str], torch.Tensor]:
    """A label for each row in use, and the indices of these rows."""
    size = now.state.tokens.shape[1]
    real = int(now.count[row])
    labels = [""] * (now.pending.shape[1] - real) + ["pending"] * real
    if plan.states is None:
        labels += [f"{kind}{w}" for w in range(plan.draft.tokens.shape[1]) for kind in "DM"]
    else:
        states = plan.states
        seen: dict[int, int] = {}
        for block, valid in zip(states.block[row].tolist(), states.valid[row].tolist(), strict=True):
            labels.append(f"S{block}.{seen.get(block, 0)}" if valid else "")
            seen[block] = seen.get(block, 0) + valid
    each = [label for label in labels for _ in range(size)]
    used = [at for at, label in enumerate(each) if label]
    return [each[at] for at in used], torch.tensor(used, device=now.state.tokens.device)
