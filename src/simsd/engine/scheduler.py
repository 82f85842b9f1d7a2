"""Which sequences run: places in the batch, refilled as soon as a sequence ends (continuous batching).

A long prompt does not hold up the others: while sequences run, a round waits for one piece of prefill at most.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Many

import torch

from simsd.drafters.base import Drafter
from simsd.engine.auto import Auto
from simsd.engine.batch import Rules
from simsd.engine.decoder import Decoder
from simsd.engine.options import DecodingOptions
from simsd.engine.request import Sequence, Stats
from simsd.engine.runner import Runner
from simsd.errors import RoomError, WorkerError


class Scheduler:
    """Waiting and running sequences: one that has not ended, and was not cancelled, is in just one of the two. Places
    0 .. n-1 of the caches are the running ones, in the order of `running`; the first that waits may have a place
    behind them, which is being filled.

    Several threads may add sequences and call `step`: a round serves all of them, whoever runs it. Hold `lock` to read
    a sequence that another thread may be advancing.
    """

    def __init__(
        self,
        options: DecodingOptions,
        target: Runner,
        drafter: Drafter | None,
        *,
        decode: Callable[[Many[int]], str],
        max_num_seqs: int = 16,
        trace: bool = False,
        auto: Auto | None = None,
    ) -> None:
        """decode: ids -> text, to look for stop strings. auto: as in `Decoder`."""
        self.target = target
        self.drafter = drafter
        self.decoder = Decoder(options, target, drafter, trace=trace, auto=auto)
        self.decode = decode
        self.max_num_seqs = max_num_seqs
        self.lock = threading.RLock()
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._place: int | None = None  # in the target's cache, of the first that waits
        self._rules: Rules | None = None

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence; it starts in the next `step` that has a free place."""
        self.prepare()
        sequence.started = time.perf_counter()
        with self.lock:
            self.waiting.append(sequence)

    def prepare(self) -> None:
        """Measures, once, what an automatic window asks of the machine: the time is no request's and no round's."""
        if self.decoder.auto is not None:
            with self.lock:
                self.decoder.auto.prepare()

    @torch.inference_mode()  # freeing a place moves another sequence's K/V
    def cancel(self, sequence: Sequence) -> None:
        """Takes a sequence out, wherever it is. Its place is free by the next step."""
        with self.lock:
            if sequence in self.waiting:
                if sequence is self.waiting[0]:
                    self._place = None
                self.waiting.remove(sequence)
            elif sequence in self.running:
                self._release(self.running.index(sequence))

    def close(self) -> None:
        """Ends what works beside the rounds."""
        if self.drafter is not None:
            with self.lock:
                self.drafter.close()

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    @torch.inference_mode()
    def step(self) -> list[Sequence]:
        """Fills free places, runs one round, and returns the sequences that ended in it.

        Raises: WorkerError, and what a round fails with. A sequence that cannot be taken in ends alone, with its error.
        """
        with self.lock:
            begin = time.perf_counter()
            ended = self._step()
            self.totals.seconds += time.perf_counter() - begin
            return ended

    @property
    def totals(self) -> Stats:
        """What was counted since the start: rounds once each, requests when they leave. `seconds` is time in `step`."""
        return self.decoder.totals

    def _step(self) -> list[Sequence]:
        stayed = self._part()  # that an interruption has kept here
        failed = self._fill()
        if self.running:
            if self._rules is None:
                self._rules = Rules.of(self.running, self.target.model.device)
            self.decoder.round(self.running, self._rules)
            for sequence in self.running:
                if sequence.params.stop:
                    self._look_for_stop(sequence)
        return stayed + failed + self._part()

    def _part(self) -> list[Sequence]:
        """Frees the places of the sequences that have ended, and returns these."""
        ended = []
        for place in reversed(range(len(self.running))):
            sequence = self.running[place]
            if sequence.finish_reason is not None:
                sequence.stats.seconds = time.perf_counter() - sequence.started
                self._release(place)
                ended.append(sequence)
        return ended[::-1]

    def _fill(self) -> list[Sequence]:
        """Prefills what waits and finds a place: all of it, but beside running sequences only about a piece a round.

        Returns those that failed on the way, for want of memory say: each waits until it runs or has its error.
        """
        left, failed = self.target.piece, []
        while self.waiting and len(self.running) < self.max_num_seqs and (left > 0 or not self.running):
            sequence = self.waiting[0]
            try:
                left -= max(self._prefill(sequence), self.target.block_length)
            except BaseException as error:
                self._place = None  # if it still waits it begins anew
                if not isinstance(error, Exception) or isinstance(error, WorkerError):  # an interruption; everybody's
                    raise
                self.waiting.popleft()
                sequence.stats.seconds = time.perf_counter() - sequence.started
                sequence.fail(_told(error, sequence))
                failed.append(sequence)
        return failed

    def _prefill(self, sequence: Sequence) -> int:
        """A piece of the first that waits, which runs from its last one on; returns its tokens."""
        begin = time.perf_counter()
        place = self._place = self._open(sequence) if self._place is None else self._place
        had = sequence.stored
        part = sequence.text_ids[had : had + self.target.piece]
        self.target.prefill(place, part, had)
        sequence.stored += len(part)
        if sequence.stored == len(sequence.text_ids):
            self._join(sequence, place)
        seconds = time.perf_counter() - begin
        for stats in (sequence.stats, self.totals):
            stats.prefill_tokens += len(part)
            stats.prefill_seconds += seconds
        return len(part)

    def _open(self, sequence: Sequence) -> int:
        """Gives a sequence a place, with what some place holds of its text."""
        place = len(self.running)
        sequence.stored = self.target.open(place, sequence.text_ids)
        for stats in (sequence.stats, self.totals):
            stats.cached_tokens += sequence.stored
        return place

    def _join(self, sequence: Sequence, place: int) -> None:
        """Its prompt is stored: it takes the first place behind the running ones (some may have left by now)."""
        own = len(self.running)
        self.target.hold(place, sequence.text_ids)
        self.target.take(own, place, sequence.stored)
        if self.drafter is not None:
            self.drafter.admit(sequence, own, self.decoder.drafts(own + 1))
        self._place = self._rules = None
        self.running.append(self.waiting.popleft())

    def _release(self, place: int) -> None:
        """Frees a place; the last sequence moves into it, so that the running ones stay side by side."""
        leaver, mover, last = self.running[place], self.running[-1], len(self.running) - 1
        left, kept = leaver.text_ids[: leaver.stored], mover.stored
        leaver.stored = mover.stored = 0  # until both are where they are looked for: an interruption may come between
        self.target.leave(place, left, last, kept)
        if self.drafter is not None:
            self.drafter.leave(leaver, place, mover, last)
        stay = self.running[:-1]
        if place < last:
            stay[place] = mover
        self.running, self._rules = stay, None
        mover.stored = kept
        self.totals.count_request(leaver.stats)

    def _look_for_stop(self, sequence: Sequence) -> None:
        """Ends the sequence before the earliest stop string in its text."""
        if sequence.finish_reason == "error":
            return
        ids = sequence.generated
        text = self.decode(ids)
        found = [at for stop in sequence.params.stop if (at := text.find(stop)) >= 0]
        if not found:
            return
        sequence.text_end = end = min(found)
        sequence.finish("stop", count_for(text[:end], ids, self.decode))


def _told(error: Exception, sequence: Sequence) -> Exception:
    """The error that a sequence ends with. One of memory is told anew: the old one keeps the tensors of its frames."""
    if not isinstance(error, MemoryError | torch.OutOfMemoryError):
        return error
    return RoomError(
        f"there was not enough memory to take in a prompt of {len(sequence.prompt_ids)} tokens; "
        "use shorter prompts, a smaller max_num_seqs or a smaller model"
    )


def count_for(text: str, ids: Many[int], decode: Callable[[Many[int]], str]) -> int:
    """The fewest leading tokens whose text begins with `text`, the beginning of that of all `ids`.

    Compared by characters, not by length: bytes of an unfinished character decode to one too, U+FFFD.
    """
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if decode(ids[:middle]).startswith(text) else (middle + 1, high)
    return low
