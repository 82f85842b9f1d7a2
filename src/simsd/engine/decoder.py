"""One round of decoding: draft, verify in one target forward, accept (method section 6).

Ordinary decoding is the same round with an empty draft: a walk over a set of one state.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from simsd.core.draft import Draft, empty_draft, limit
from simsd.core.layout import with_pending
from simsd.core.states import reach
from simsd.drafters.base import Drafter, DraftRequest
from simsd.engine.auto import Auto, Choice
from simsd.engine.batch import Round, Rules
from simsd.engine.options import DecodingOptions
from simsd.engine.request import Sequence, Stats
from simsd.engine.runner import Runner
from simsd.engine.trace import record
from simsd.engine.verify import Plan, Verdict, entries, judge, log_probabilities, plan, stored_blocks
from simsd.errors import NumericalError

# Query tokens that copies of one round may come to; a window is cut so that their mask stays small.
MOST_ROWS = 4096


@dataclass(frozen=True)
class Taken:
    """What a sequence took over from a round: places of the window, states of each block that were visited, tokens."""

    places: int
    states: list[int]
    tokens: int


class Decoder:
    """Runs rounds for a batch of sequences. `drafter` None is ordinary decoding.

    totals: what all rounds so far came to; each round counts once, whatever the batch.
    """

    def __init__(
        self,
        options: DecodingOptions,
        target: Runner,
        drafter: Drafter | None,
        *,
        trace: bool = False,
        auto: Auto | None = None,
    ) -> None:
        """auto: chooses window and states, where the options leave both to it (`DecodingOptions.adaptive`)."""
        self.options = options
        self.target = target
        self.drafter = drafter
        self.trace = trace
        self.auto = auto
        self.totals = Stats()

    def round(self, sequences: Many[Sequence], rules: Rules) -> None:
        """One target forward for all sequences; each takes over what it decides, and may end or fail by it."""
        clock = [time.perf_counter()]
        now = Round.of(sequences, self.target.model.device)
        before = self._drafted()
        draft = self._draft(sequences, now, rules)
        forwards, ahead = (count - had for count, had in zip(self._drafted(), before, strict=True))
        clock.append(time.perf_counter())

        work = plan(self.options, now, draft, rules, self.auto)
        layout = with_pending(work.layout, now.pending, now.count, now.state.start)
        self._expect(sequences, now, work)
        logits = self.target.logits(layout, now.stored, now.skipped)
        clock.append(time.perf_counter())

        verdict = judge(self.options, now, work, logits, rules)
        taken = self._commit(sequences, work, logits, verdict, rules)
        if self.trace:
            for row, sequence in enumerate(sequences):
                sequence.trace.append(record(row, now, work, layout, verdict.outcome, taken[row].places))
        clock.append(time.perf_counter())
        spent = [end - begin for begin, end in pairwise(clock)]
        rows = layout.ids.shape[1]
        for sequence in sequences:
            sequence.stats.count_round(forwards, ahead, rows, *spent)
        self.totals.count_round(forwards, ahead, rows * len(sequences), *spent)
        if self.auto is not None:
            visited = [sum(counts) for counts in zip(*(t.states for t in taken), strict=True)]
            choice = work.choice or Choice(now.fresh, 0, [])
            self.auto.observe(choice, len(sequences), rows, sum(spent), visited, sum(t.tokens for t in taken))

    def _drafted(self) -> tuple[int, int]:
        """Forwards of the draft model, and drafts made ahead, so far."""
        return (0, 0) if self.drafter is None else (self.drafter.forwards, self.drafter.ahead)

    def _expect(self, sequences: Many[Sequence], now: Round, work: Plan) -> None:
        """Tells the drafter how the round will end, should the draft be right."""
        states, gamma, blocks = work.states, self.options.num_speculative_tokens, work.draft.tokens.shape[1]
        if self.drafter is None or states is None:
            return

        def window(fewest: int) -> int:
            return _blocks_for(gamma, self.options.block_length, fewest) if isinstance(gamma, int) else blocks

        left = [s.blocks_left for s in sequences]
        self.drafter.expect(lambda: reach(now.state, work.draft, states), left, window)

    def _draft(self, sequences: Many[Sequence], now: Round, rules: Rules) -> Draft:
        if self.drafter is None:
            return empty_draft(now.state)
        gamma, blocks = self._window(sequences, now)
        if blocks == 0:
            return empty_draft(now.state)
        by_draw = self.options.acceptance == "replay"
        request = DraftRequest(now.state, blocks, rules.sampler, rules.schedule, by_draw, now.salt, sequences)
        return limit(self.drafter.propose(request), gamma, whole_steps=by_draw)

    def _window(self, sequences: Many[Sequence], now: Round) -> tuple[int, int]:
        """The window in tokens and in blocks; no block beyond what the batch still needs."""
        size = self.options.block_length
        gamma = self.options.num_speculative_tokens
        if self.auto is not None:
            blocks = self.auto.blocks(len(sequences), now.fresh)
            gamma = blocks * size
        elif not isinstance(gamma, int):  # the paper drafts inside a block; exact decoding gains by going on
            blocks = 1 if self.options.layout == "paired" else 2
            gamma = blocks * size
        else:
            fewest = min(s.block.count(s.mask_id) for s in sequences)
            blocks = _blocks_for(gamma, size, fewest)
        if self.options.layout == "unrolled":  # a step costs a copy of B rows
            gamma = min(gamma, max(1, MOST_ROWS // size))
        return gamma, min(blocks, max(s.blocks_left for s in sequences))

    def _commit(
        self, sequences: Many[Sequence], work: Plan, logits: Tensor, verdict: Verdict, rules: Rules
    ) -> list[Taken]:
        """Each sequence takes over its part of the outcome."""
        taken_over: list[Taken] = []
        outcome = verdict.outcome
        blocks, size = outcome.tokens.shape[1:]
        views = entries(work, logits)
        numbers = [outcome.tokens, outcome.taken, outcome.accepted, work.draft.drafted]
        if rules.logprobs:
            numbers.append(log_probabilities(views, outcome))
        ends = torch.stack((outcome.finished, stored_blocks(work, outcome), outcome.entry, verdict.bad.long()), 1)
        # the one copy to the host of a round; float64 holds every id and count exactly
        flat = torch.cat([ends.double(), *(t.flatten(1).double() for t in numbers)], 1).tolist()
        width = blocks * size
        for row, sequence in enumerate(sequences):
            finished, stored, entry, bad = (int(x) for x in flat[row][:4])
            if bad:
                sequence.error = NumericalError(
                    f"the target's logits were not numbers at position {len(sequence.text_ids)}; "
                    "the weights or the dtype overflow: try dtype float32 or bfloat16"
                )
                sequence.finish("error", 0)
                taken_over.append(Taken(0, [0] * blocks, 0))
                continue
            parts = [flat[row][4 + k * width : 4 + (k + 1) * width] for k in range(len(numbers))]
            tokens, taken = _blocks(parts[0], size), _blocks(parts[1], size)
            logprobs = [parts[4][at : at + size] for at in range(0, width, size)] if rules.logprobs else None
            begin = len(sequence.text_ids)
            sequence.stored = begin + stored * size
            committed = sequence.put(tokens, taken, logprobs, finished)
            sequence.stats.committed_tokens += committed
            # a sequence that ended inside the window took over nothing behind its last block
            used = len(sequence.text_ids) - begin if sequence.finish_reason else width
            taken_over.append(Taken(used, [len({*steps} - {-1}) for steps in taken], committed))
            sequence.stats.count_drafts(int(sum(parts[2][:used])), int(sum(parts[3][:used])))
            if self.drafter is not None and self.drafter.wants_logits:
                open_block = finished < blocks and max(taken[finished]) >= 0
                self.drafter.observe(sequence, views[row, entry].clone() if open_block else None)
        return taken_over


def _blocks_for(gamma: int, size: int, fewest: int) -> int:
    """Blocks of `size` in which a window of gamma tokens has room; fewest: masks of a current block."""
    return 1 + -(-max(0, gamma - fewest) // size)


def _blocks(values: Many[float], size: int) -> list[list[int]]:
    return [[int(v) for v in values[at : at + size]] for at in range(0, len(values), size)]
