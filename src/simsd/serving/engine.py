"""One thread that decodes for everyone: a bounded queue in front of a bounded number of places.

The web side hands jobs in and gets updates through each job's `deliver`; nothing else crosses the threads.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simsd.engine.completion import Piece
from simsd.engine.generation import Generation
from simsd.engine.trace import RoundTrace
from simsd.llm import LLM
from simsd.serving.errors import ApiError, as_api_error, queue_full, shutting_down, timed_out
from simsd.serving.logs import event
from simsd.serving.metrics import Metrics
from simsd.serving.pool import Pool

LAST_ROUND = 5.0  # seconds that a round under way gets at the end; its thread is left to itself then


@dataclass(frozen=True)
class Update:
    """News of one job: what its last round brought, its end, or its failure."""

    choice: int
    piece: Piece | None = None
    rounds: Sequence[RoundTrace] = ()
    error: ApiError | None = None

    @property
    def last(self) -> bool:
        return self.error is not None or (self.piece is not None and self.piece.completion is not None)


@dataclass(eq=False)
class Job:
    """One sequence of a request.

    choice: its place among the request's answers. deliver: called in the engine's thread.
    timeout: seconds from `arrived` on. Times are those of `time.monotonic`.
    """

    request_id: str
    choice: int
    llm: LLM
    generation: Generation
    deliver: Callable[[Update], None]
    timeout: float
    arrived: float = field(default_factory=time.monotonic)
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    drafted: int = 0
    accepted: int = 0
    cancelled: bool = False


class Engine:
    """Places for `slots` sequences in all, whatever their options, and `max_waiting` more in the queue."""

    def __init__(self, pool: Pool, slots: int, max_waiting: int, metrics: Metrics) -> None:
        self.slots = slots
        self.capacity = slots + max_waiting
        self._pool = pool
        self._metrics = metrics
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._closing = False
        self._seconds = 1.0  # what a job typically takes, for Retry-After
        self._thread = threading.Thread(target=self._run, name="simsd-engine", daemon=True)
        metrics.watch(lambda: len(self._running), lambda: len(self._waiting))

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def open_jobs(self) -> int:
        """Jobs that wait or run."""
        return len(self._waiting) + len(self._running)

    def check_room(self, count: int) -> None:
        """Raises ApiError: 429 where `count` more jobs do not fit, 503 while shutting down."""
        with self._changed:
            if self._closing:
                raise shutting_down()
            if self.open_jobs + count > self.capacity:
                turns = math.ceil((self.open_jobs + count - self.capacity) / self.slots)
                waiting = max(0, self.open_jobs - self.slots)  # the others are about to begin
                raise queue_full(waiting, count, min(60, max(1, math.ceil(turns * self._seconds))))

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queues all of them or none. Raises as `check_room`."""
        with self._changed:
            self.check_room(len(jobs))
            self._waiting.extend(jobs)
            self._changed.notify()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Takes jobs out before the next round; those that have ended are left alone. They get no more updates."""
        with self._changed:
            for job in jobs:
                job.cancelled = True
            self._changed.notify()

    def abort(self) -> None:
        """Accepts nothing more, and tells the clients of all jobs so at once: no round under way is waited for."""
        with self._changed:
            self._closing = True
            for job in (*self._waiting, *self._running):
                self._deliver(job, Update(job.choice, error=shutting_down()))
                job.cancelled = True
            self._changed.notify()

    def close(self, grace: float) -> None:
        """Accepts nothing more, finishes what is there for `grace` seconds, and ends the rest with an error.

        A round under way then is waited for, but no longer than `LAST_ROUND`.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        if not self._thread.ident:
            return
        self._thread.join(grace)
        self.abort()
        self._thread.join(LAST_ROUND)
        if self.alive:
            event("engine_stuck", logging.ERROR, waited_seconds=LAST_ROUND)

    def turn(self) -> None:
        """Lets go of who is to leave, fills free places, and runs one round of every set of options in use.

        The engine's thread does nothing else, over and over.
        """
        self._clear_out()
        self._fill_places()
        for llm in list({id(job.llm): job.llm for job in self._running}.values()):
            self._round(llm)

    # ------------------------------------------------------------------ the engine's thread
    def _run(self) -> None:
        while self._await_work():
            try:
                self.turn()
            except Exception as error:  # a mistake of this module must not leave clients waiting for ever
                event("engine_failure", logging.ERROR, failure=error)
                for job in self._running[:]:
                    self._pool.discard(job.llm)
                    self._fail(job, error)

    def _await_work(self) -> bool:
        with self._changed:
            while not self._waiting and not self._running:
                if self._closing:
                    return False
                self._changed.wait()
        return True

    def _clear_out(self) -> None:
        now = time.monotonic()
        with self._changed:
            leaving = [job for job in self._waiting if self._leaves(job, now)]
            for job in leaving:
                self._waiting.remove(job)
        leaving += [job for job in self._running if self._leaves(job, now)]
        for job in leaving:
            self._dismiss(job)

    @staticmethod
    def _leaves(job: Job, now: float) -> bool:
        return job.cancelled or now > job.arrived + job.timeout

    def _dismiss(self, job: Job) -> None:
        job.generation.cancel()
        if job.cancelled:
            self._end(job, "abort")
        else:
            self._fail(job, timed_out(job.timeout))

    def _fill_places(self) -> None:
        while len(self._running) < self.slots:
            with self._changed:
                if not self._waiting:
                    return
                job = self._waiting.popleft()
                self._running.append(job)
            if self._leaves(job, time.monotonic()):  # it came after the others were looked through
                self._dismiss(job)
                continue
            job.started = time.monotonic()
            self._metrics.started(job.generation.sequence.stats.prompt_tokens, job.started - job.arrived)
            job.generation.start()

    def _round(self, llm: LLM) -> None:
        jobs = [job for job in self._running if job.llm is llm]
        try:
            llm.step()
        except Exception as error:  # its caches are in an unknown state: everyone who shares them starts anew
            self._pool.discard(llm)
            event("round_failed", logging.ERROR, failure=error, request_ids=[job.request_id for job in jobs])
            for job in jobs:
                self._fail(job, error)
            return
        for job in jobs:
            try:
                self._report(job)
            except Exception as error:
                level = logging.WARNING if isinstance(error, ArithmeticError) else logging.ERROR
                event("request_failed", level, failure=error, request_id=job.request_id, choice=job.choice)
                job.generation.cancel()
                self._fail(job, error)

    def _report(self, job: Job) -> None:
        """Counts what the round brought for this job, and delivers it."""
        stats = job.generation.sequence.stats
        self._metrics.drafted(stats.drafted_tokens - job.drafted, stats.accepted_tokens - job.accepted)
        job.drafted, job.accepted = stats.drafted_tokens, stats.accepted_tokens
        piece, rounds = job.generation.read(), job.generation.rounds()
        if piece is not None:
            self._time_tokens(job, len(piece.token_ids))
        if piece is None or piece.completion is None:
            if piece is not None or rounds:
                self._deliver(job, Update(job.choice, piece, rounds))
            return
        self._end(job, piece.completion.finish_reason)
        self._deliver(job, Update(job.choice, piece, rounds))

    def _time_tokens(self, job: Job, count: int) -> None:
        if count == 0:
            return
        now = time.monotonic()
        if job.last_token is None:
            job.first_token = now
            self._metrics.first_tokens(now - job.arrived, count)
        else:
            self._metrics.more_tokens(now - job.last_token, count)
        job.last_token = now

    def _fail(self, job: Job, error: Exception) -> None:
        self._end(job, "error")
        self._deliver(job, Update(job.choice, error=as_api_error(error, job.request_id)))

    def _end(self, job: Job, reason: str) -> None:
        """The job leaves: before its client hears of it, so that whoever asks then finds the place free."""
        now = time.monotonic()
        with self._changed:
            if job in self._running:
                self._running.remove(job)
        self._pool.release(job.llm)
        seconds = now - job.arrived
        if job.started is not None:
            self._seconds += 0.1 * (now - job.started - self._seconds)
        decode = None if job.first_token is None else now - job.first_token
        tokens = job.generation.decoded
        self._metrics.ended(reason, seconds, decode, tokens)
        event(
            "finished",
            request_id=job.request_id,
            choice=job.choice,
            reason=reason,
            prompt_tokens=job.generation.sequence.stats.prompt_tokens,
            tokens=tokens,
            queue_seconds=(job.started or now) - job.arrived,
            first_token_seconds=None if job.first_token is None else job.first_token - job.arrived,
            seconds=seconds,
        )

    def _deliver(self, job: Job, update: Update) -> None:
        if job.cancelled:
            return
        try:
            job.deliver(update)
        except RuntimeError:  # the event loop that waited for it is closed
            job.cancelled = True
