"""One round of decoding: draft, verify in one target forward, accept (method section 6).

Ordinary decoding is the same round with an empty draft: a walk over a set of one state.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from simsd.core.acceptance import Outcome
from simsd.core.draft import Draft, empty_draft, limit
from simsd.core.layout import Layout, with_pending
from simsd.core.prefix import Bucket
from simsd.core.states import States, reach
from simsd.core.tensors import put
from simsd.drafters.base import Drafter, DraftRequest
from simsd.engine.auto import Auto, Choice, Foreseen
from simsd.engine.batch import Round, Rules
from simsd.engine.options import DecodingOptions
from simsd.engine.request import Sequence, Stats
from simsd.engine.runner import Runner
from simsd.engine.trace import record
from simsd.engine.verify import Plan, Promises, entries, judge, log_probabilities, plan, stored_blocks
from simsd.errors import NumericalError

# Query tokens that copies of one round may come to; a window is cut so that their mask stays small.
MOST_ROWS = 4096


@dataclass(frozen=True)
class Asked:
    """All that a verification depends on, beside the weights and the cache; host values in it differ rarely."""

    now: Round
    draft: Draft
    rules: Rules
    foreseen: Foreseen | None = None


@dataclass(frozen=True)
class Laid:
    """A draft as the target will see it; `layout` has the pending blocks in front."""

    work: Plan
    layout: Layout


@dataclass(frozen=True)
class Found:
    """What a verification came to, on the target's device.

    numbers: [N, M] what the host has to know, ids and counts; float64 holds each of them exactly.
    rows, blocks: query tokens of each sequence, blocks of the window.
    choice: what `auto` chose; promised: the shape of `Promises.by_window`, where these stand behind the other numbers.
    newest: [N, B, V] the target's newest logits of each block under decoding, for a drafter that wants them.
    seen: what a trace shows.
    """

    numbers: Tensor
    rows: int
    blocks: int
    choice: Choice | None = None
    promised: tuple[int, int] | None = None
    newest: Tensor | None = None
    seen: Seen | None = None


@dataclass(frozen=True)
class Seen:
    """A round as a trace shows it."""

    work: Plan
    layout: Layout
    outcome: Outcome


@dataclass(frozen=True)
class Taken:
    """What a sequence took over from a round: places of the window, states of each block that were visited."""

    places: int
    states: list[int]


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
        now = Round.of(sequences, self.target)
        before = self._drafted()
        gamma, blocks = self._window(sequences, now)
        reading, blocks = self._catch_up(sequences, blocks)
        draft = self._draft(sequences, now, rules, gamma, blocks)
        forwards, ahead = (count - had for count, had in zip(self._drafted(), before, strict=True))
        clock.append(time.perf_counter())

        recorded = self.target.recorded
        asked = self._asked(now, draft, rules)
        if isinstance(now.prefix, Bucket):  # which states there are will be known when the graph has run
            self._expect(sequences, now, draft, None)
            found = self.target.run(self._verify, asked)
        else:
            laid = self._lay_out(asked)
            self._expect(sequences, now, laid.work.draft, laid.work.states)
            found = self._check(asked, laid)
        numbers = to_host(found.numbers)
        clock.append(time.perf_counter())

        taken = self._commit(sequences, found, numbers, rules)
        if (seen := found.seen) is not None:
            for row, sequence in enumerate(sequences):
                sequence.trace.append(record(row, now, seen.work, seen.layout, seen.outcome, taken[row].places))
        clock.append(time.perf_counter())
        spent = [end - begin for begin, end in pairwise(clock)]
        for sequence in sequences:
            sequence.stats.count_round(blocks, forwards, ahead, found.rows, *spent)
        self.totals.count_round(blocks, forwards, ahead, found.rows * len(sequences), *spent)
        if self.auto is not None:
            visited = [sum(counts) for counts in zip(*(t.states for t in taken), strict=True)]
            choice = self._choice(self.auto, now, blocks, found, numbers[0])
            if self.target.recorded == recorded:  # else its seconds are no round's
                self.auto.observe(choice, len(sequences), found.rows, sum(spent) - reading, visited, reading)

    def drafts(self, sequences: int) -> bool:
        """Whether a batch of so many is about to be drafted for."""
        return self.auto is None or self.auto.drafts(sequences)

    def _drafted(self) -> tuple[int, int]:
        """Forwards of the draft model, and drafts made ahead, so far."""
        return (0, 0) if self.drafter is None else (self.drafter.forwards, self.drafter.ahead)

    def _expect(self, sequences: Many[Sequence], now: Round, draft: Draft, states: States | None) -> None:
        """Tells the drafter how the round will end, should the draft be right; without states, by the whole draft."""
        if self.drafter is None:
            return
        gamma, blocks = self.options.num_speculative_tokens, draft.tokens.shape[1]

        def window(fewest: int) -> int:
            return _blocks_for(gamma, self.options.block_length, fewest) if isinstance(gamma, int) else blocks

        left = [s.blocks_left for s in sequences]
        self.drafter.expect(lambda: draft.last if states is None else reach(now.state, draft, states), left, window)

    def _catch_up(self, sequences: Many[Sequence], blocks: int) -> tuple[float, int]:
        """Seconds in which the drafter has read what was written while no draft was asked for, and the window: none
        where it had no memory for that, which is no fault of the other sequences and no reason to end its own."""
        if self.drafter is None or blocks == 0:
            return 0.0, blocks
        begin = time.perf_counter()
        try:
            worked = self.drafter.catch_up(sequences, blocks)
        except (MemoryError, torch.OutOfMemoryError):
            worked, blocks = True, 0
        return (time.perf_counter() - begin if worked else 0.0), blocks

    def _draft(self, sequences: Many[Sequence], now: Round, rules: Rules, gamma: int, blocks: int) -> Draft:
        if self.drafter is None or blocks == 0:
            return empty_draft(now.state)
        by_draw = self.options.acceptance == "replay"
        request = DraftRequest(
            now.state, blocks, rules.sampler, rules.schedule, by_draw, now.salt, sequences, now.steady
        )
        draft = limit(self.drafter.propose(request), gamma, whole_steps=by_draw)
        # without doubts `auto` has nothing to choose states by
        return draft if self.auto is None or draft.doubt is not None else empty_draft(now.state)

    def _window(self, sequences: Many[Sequence], now: Round) -> tuple[int, int]:
        """The window in tokens and in blocks; no block beyond what the batch still needs."""
        if self.drafter is None:
            return 0, 0
        size = self.options.block_length
        most = max(1, MOST_ROWS // size) if self.options.layout == "unrolled" else sys.maxsize
        left = max(s.blocks_left for s in sequences)
        gamma = self.options.num_speculative_tokens
        fewest = min(s.block.count(s.mask_id) for s in sequences)
        if self.auto is not None:
            longest = min(left, self.drafter.most_blocks, _blocks_for(most, size, fewest))
            blocks = self.auto.blocks(len(sequences), now.fresh, longest)
            return min(blocks * size, most), blocks
        if isinstance(gamma, int):
            blocks = _blocks_for(gamma, size, fewest)
        else:  # the paper drafts inside a block; exact decoding gains by going on
            blocks = 1 if self.options.layout == "paired" else 2
            gamma = blocks * size
        return min(gamma, most), min(blocks, left)

    def _asked(self, now: Round, draft: Draft, rules: Rules) -> Asked:
        if not isinstance(now.prefix, Bucket):
            return Asked(now, draft, rules)
        foreseen = None
        if self.auto is not None and draft.doubt is not None:  # a graph cannot wait for the host to choose
            states = self.auto.foresee(len(draft.tokens), now.fresh, draft.tokens.shape[1])
            foreseen = Foreseen(states, put(self.auto.trust, draft.doubt.dtype, draft.doubt.device))
        return Asked(now.widened(), draft, rules, foreseen)

    def _verify(self, asked: Asked) -> Found:
        """From the draft to the verdict, with one forward of the target in between, as one piece of work."""
        return self._check(asked, self._lay_out(asked))

    def _lay_out(self, asked: Asked) -> Laid:
        now = asked.now
        work = plan(self.options, now, asked.draft, asked.rules, asked.foreseen or self.auto)
        return Laid(work, with_pending(work.layout, now.pending, now.count, now.state.start))

    def _check(self, asked: Asked, laid: Laid) -> Found:
        now, rules, work, layout = asked.now, asked.rules, laid.work, laid.layout
        logits = self.target.logits(layout, now.prefix)
        verdict = judge(self.options, now, work, logits, rules)
        outcome, views = verdict.outcome, entries(work, logits)
        numbers = [outcome.tokens, outcome.taken, outcome.accepted, work.draft.drafted]
        if rules.logprobs:
            numbers.append(log_probabilities(views, outcome))
        ends = torch.stack((outcome.finished, stored_blocks(work, outcome), verdict.bad.long()), 1)
        flat = [ends.double(), *(t.flatten(1) for t in numbers)]  # the others are cast by it
        choice, (batch, blocks, _) = work.choice, outcome.tokens.shape
        if isinstance(choice, Promises):
            flat += [t.double().flatten().expand(batch, -1) for t in (choice.by_window, choice.kept)]
        newest = None
        if self.drafter is not None and self.drafter.wants_logits:
            alone = views.shape[1] == 1  # as in most rounds of ordinary decoding: nothing to look up
            newest = views[:, 0] if alone else views[torch.arange(batch, device=views.device), outcome.entry]
        return Found(
            numbers=torch.cat(flat, 1),
            rows=layout.ids.shape[1],
            blocks=blocks,
            choice=choice if isinstance(choice, Choice) else None,
            promised=(blocks, choice.by_window.shape[1]) if isinstance(choice, Promises) else None,
            newest=newest,
            seen=Seen(work, layout, outcome) if self.trace else None,
        )

    def _choice(self, auto: Auto, now: Round, blocks: int, found: Found, numbers: list[float]) -> Choice:
        """What the round's states were chosen by; `auto` learns from what it has to be told now."""
        if blocks == 0:
            return Choice(now.fresh, 0, [])
        if found.choice is not None:
            return found.choice
        sequences = len(found.numbers)
        if found.promised is None:  # nothing was drafted, if it was asked for at all
            auto.learn(sequences, now.fresh, [[1.0]] * blocks)
            return Choice(now.fresh, blocks, [])
        windows, states = found.promised
        told = numbers[-windows * (states + 1) :]
        promises = [told[at : at + states] for at in range(0, windows * states, states)]
        auto.learn(sequences, now.fresh, promises)
        return Choice(now.fresh, windows, told[windows * states :])

    def _commit(self, sequences: Many[Sequence], found: Found, numbers: list[list[float]], rules: Rules) -> list[Taken]:
        """Each sequence takes over its part of the outcome."""
        taken_over: list[Taken] = []
        blocks, size = found.blocks, self.options.block_length
        width = blocks * size
        for row, sequence in enumerate(sequences):
            finished, stored, bad = (int(x) for x in numbers[row][:3])
            if bad:
                sequence.error = NumericalError(
                    f"the target's logits were not numbers at position {len(sequence.text_ids)}; "
                    "the weights or the dtype overflow: try dtype float32 or bfloat16"
                )
                sequence.finish("error", 0)
                taken_over.append(Taken(0, [0] * blocks))
                continue
            parts = [numbers[row][3 + k * width : 3 + (k + 1) * width] for k in range(5)]
            tokens, taken = _blocks(parts[0], size), _blocks(parts[1], size)
            logprobs = [parts[4][at : at + size] for at in range(0, width, size)] if rules.logprobs else None
            begin = len(sequence.text_ids)
            sequence.stats.committed_tokens += sequence.put(tokens, taken, logprobs, finished, begin + stored * size)
            # a sequence that ended inside the window took over nothing behind its last block
            used = len(sequence.text_ids) - begin if sequence.finish_reason else width
            taken_over.append(Taken(used, [len({*steps} - {-1}) for steps in taken]))
            sequence.stats.count_drafts(int(sum(parts[2][:used])), int(sum(parts[3][:used])))
            if self.drafter is not None and found.newest is not None:
                open_block = finished < blocks and max(taken[finished]) >= 0
                self.drafter.observe(sequence, found.newest[row] if open_block else None)
        return taken_over


def _blocks_for(gamma: int, size: int, fewest: int) -> int:
    """Blocks of `size` in which a window of gamma tokens has room; fewest: masks of a current block."""
    return 1 + -(-max(0, gamma - fewest) // size)


def to_host(numbers: Tensor) -> list[list[float]]:
    """The one copy to the host of a round: it waits until the device has come so far."""
    return numbers.tolist()


def _blocks(values: Many[float], size: int) -> list[list[int]]:
    return [[int(v) for v in values[at : at + size]] for at in range(0, len(values), size)]
