"""From sequences to the tensors that one round works on."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from simsd.core.draft import BlockState
from simsd.core.prefix import Bucket, Prefix
from simsd.core.sampling import Sampler
from simsd.core.schedule import STRATEGIES, Schedule, doubt_threshold, quotas
from simsd.core.tensors import sent
from simsd.engine.request import Sequence
from simsd.engine.runner import Runner


@dataclass(frozen=True)
class Rules:
    """How the sequences of a batch draw and reveal; it changes only when the batch does.

    timed: a step of some sequence depends on how many steps came before it in the block.
    logprobs: some sequence wants the log-probabilities of its tokens.
    """

    sampler: Sampler
    schedule: Schedule
    timed: bool
    logprobs: bool

    @classmethod
    def of(cls, sequences: Many[Sequence], device: torch.device) -> Rules:
        params = [s.params for s in sequences]
        size = sequences[0].block_length
        quota = [quotas(size, p.denoising_steps or size) for p in params]
        longest = max(len(q) for q in quota)
        sampler = Sampler.of(
            temperature=[float(p.temperature) for p in params],
            top_k=[min(p.top_k, 2**62) for p in params],
            top_p=[float(p.top_p) for p in params],
            seed=[p.seed or 0 for p in params],  # resolved ones have one
            device=device,
        )
        strategy = [p.remasking_strategy or STRATEGIES[0] for p in params]
        schedule = Schedule(
            strategy=torch.tensor([STRATEGIES.index(name) for name in strategy], device=device),
            quota=torch.tensor([q + q[-1:] * (longest - len(q)) for q in quota], device=device),
            doubt=torch.tensor([doubt_threshold(p.confidence_threshold or 0.0) for p in params], device=device),
            entropy=torch.tensor([p.eb_threshold or 0.0 for p in params], device=device),
            present=frozenset(strategy),
        )
        uneven = any(len(set(q)) > 1 for q in quota)
        timed = sampler.random or uneven or "random" in schedule.present
        return cls(sampler, schedule, timed, any(p.logprobs for p in params))


@dataclass(frozen=True)
class Round:
    """The state of a batch at the beginning of a round.

    pending: [N, P, B] finished blocks whose K/V are not stored, the last `count` [N] of them real.
    salt:    [N] the number of the round in each sequence: random numbers of two rounds are independent.
    prefix:  what the target's cache holds.
    masked:  the most masks that a current block has.
    """

    state: BlockState
    pending: Tensor
    count: Tensor
    salt: Tensor
    prefix: Prefix
    masked: int

    @property
    def fresh(self) -> bool:
        """Whether some sequence is at the very beginning of its block."""
        return self.masked == self.state.tokens.shape[1]

    @property
    def steady(self) -> bool:
        """Whether no shape may follow from values: an accelerator would have to be waited for, and a graph has one."""
        return isinstance(self.prefix, Bucket) or self.state.tokens.device.type != "cpu"

    def widened(self) -> Round:
        """The same for a graph: `masked` is rounded up, so that few graphs serve all rounds."""
        size = self.state.tokens.shape[1]
        return replace(self, masked=min(size, 1 << max(self.masked - 1, 0).bit_length()))

    @classmethod
    def of(cls, sequences: Many[Sequence], target: Runner) -> Round:
        size, mask_id = sequences[0].block_length, sequences[0].mask_id
        waiting = [s.text_ids[s.stored :] for s in sequences]
        longest = max(len(ids) for ids in waiting)
        stored, skipped = [s.stored for s in sequences], [longest - len(ids) for ids in waiting]
        tokens, start, taken, pending, count, salt, there = sent(
            target.model.device,
            [token for s in sequences for token in s.block],
            [len(s.text_ids) for s in sequences],
            [s.taken for s in sequences],
            [token for skip, ids in zip(skipped, waiting, strict=True) for token in (*[mask_id] * skip, *ids)],
            [len(ids) // size for ids in waiting],
            [s.stats.rounds for s in sequences],
            stored,
        )
        return cls(
            state=BlockState(tokens.view(-1, size), start, taken, mask_id),
            pending=pending.view(len(sequences), longest // size, size),
            count=count,
            salt=salt,
            prefix=target.prefix(stored, skipped, there),
            masked=max(s.block.count(mask_id) for s in sequences),
        )
