"""Which masked positions a denoising step reveals (method section 2). Every rule works on [..., B] tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from simsd.core.tensors import on_device

STRATEGIES = ("low_confidence_static", "low_confidence_dynamic", "sequential", "entropy_bounded", "random")


@dataclass(frozen=True)
class Schedule:
    """The remasking strategy of each of N sequences.

    strategy: [N] index into STRATEGIES.
    quota:    [N, T] tokens to reveal at each step (the static n).
    doubt:    [N] the confidence threshold c as log((1 - c) / c).
    entropy:  [N] the bound of `entropy_bounded`, nats.
    present:  the strategies that occur in the batch (host value: no other rule is computed).
    """

    strategy: Tensor
    quota: Tensor
    doubt: Tensor
    entropy: Tensor
    present: frozenset[str]

    @property
    def needs_entropy(self) -> bool:
        return "entropy_bounded" in self.present


def quotas(block_length: int, denoising_steps: int) -> list[int]:
    """Tokens revealed at each of `denoising_steps` steps: B // steps, one more in the first B % steps."""
    if not 1 <= denoising_steps <= block_length:
        raise ValueError(f"denoising_steps is {denoising_steps}; it must be from 1 to the block length {block_length}")
    share, extra = divmod(block_length, denoising_steps)
    return [share + (step < extra) for step in range(denoising_steps)]


def doubt_threshold(confidence: float) -> float:
    """The confidence threshold on the scale of `Drawn.doubt`."""
    if confidence <= 0:
        return math.inf
    return -math.inf if confidence >= 1 else math.log1p(-confidence) - math.log(confidence)


def rank(score: Tensor, among: Tensor) -> Tensor:
    """[..., B] how many of the positions `among` come before each one by rising score, equal ones by position."""
    score = torch.where(among, score, torch.inf)
    mine, other = score[..., :, None], score[..., None, :]
    before = (other < mine) | ((other == mine) & on_device(_earlier(score.shape[-1]), score.device))
    return (before & among[..., None, :]).sum(-1)


@cache
def _earlier(size: int) -> Tensor:
    """[B, B], True where the second position stands before the first."""
    return torch.ones(size, size, dtype=torch.bool).tril(-1)


def low_confidence_static(doubt: Tensor, masked: Tensor, n: Tensor) -> Tensor:
    """The n most confident."""
    return masked & (rank(doubt, masked) < n)


def low_confidence_dynamic(doubt: Tensor, masked: Tensor, n: Tensor, threshold: Tensor) -> Tensor:
    """All above the threshold, and never fewer than the static n."""
    return masked & ((doubt < threshold) | (rank(doubt, masked) < n))


def sequential(masked: Tensor, n: Tensor) -> Tensor:
    """The n leftmost."""
    return masked & (masked.long().cumsum(-1) <= n)


def entropy_bounded(entropy: Tensor, masked: Tensor, bound: Tensor) -> Tensor:
    """By rising entropy while the sum stays under the bound, at least one."""
    order = rank(entropy, masked)
    earlier = order[..., None, :] <= order[..., :, None]
    total = (torch.where(masked, entropy, 0.0)[..., None, :] * (earlier & masked[..., None, :])).sum(-1)
    return masked & ((total < bound) | (order == 0))


def random(noise: Tensor, masked: Tensor, n: Tensor) -> Tensor:
    """n at random: those of the smallest noise."""
    return masked & (rank(noise, masked) < n)


def reveal(
    schedule: Schedule, masked: Tensor, taken: Tensor, doubt: Tensor, entropy: Tensor | None, noise: Tensor | None
) -> Tensor:
    """Positions [N, ..., B] that the step number `taken` [N, ...] reveals; at least one wherever a mask is left.

    noise [N, ..., B] is needed by the strategy `random` alone, entropy by `entropy_bounded` alone.
    """

    def own(values: Tensor) -> Tensor:  # one value a sequence, shaped to broadcast with [N, ..., B]
        return values.view(-1, *[1] * (masked.dim() - 1))

    step = taken.clamp(max=schedule.quota.shape[1] - 1)
    n = schedule.quota.gather(1, step.view(step.shape[0], -1)).view(step.shape)[..., None]
    chosen: Tensor | None = None
    for index, name in enumerate(STRATEGIES):
        if name not in schedule.present:
            continue
        if name == "low_confidence_static":
            picked = low_confidence_static(doubt, masked, n)
        elif name == "low_confidence_dynamic":
            picked = low_confidence_dynamic(doubt, masked, n, own(schedule.doubt))
        elif name == "sequential":
            picked = sequential(masked, n)
        elif name == "entropy_bounded":
            assert entropy is not None
            picked = entropy_bounded(entropy, masked, own(schedule.entropy))
        else:
            assert noise is not None
            picked = random(noise, masked, n)
        if len(schedule.present) == 1:
            return picked
        mine = picked & own(schedule.strategy == index)
        chosen = mine if chosen is None else chosen | mine
    assert chosen is not None
    return chosen
