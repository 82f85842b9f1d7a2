"""One sequence on its way: its text so far, its block under decoding, and what was counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from itertools import zip_longest
from operator import add, sub
from typing import Any

from simsd.engine.options import SamplingParams


@dataclass
class Stats:
    """What a request cost and gained (method section 7). Seconds of a batch count in full for each of its requests.

    tokens: of the final text, counted once from its ids, the same way for every method.
    prefill_tokens: of the prompt, in whole blocks, computed; cached_tokens: those whose K/V were there already.
    committed_tokens: all tokens put into blocks, also those beyond a stop id or max_tokens.
    query_tokens: rows of the target's decoding forwards (fill-up rows of a batch included), prefill apart.
    acceptance_histogram: how many rounds kept 0, 1, 2 ... drafted tokens.
    window_histogram: how many rounds asked for a draft of 0, 1, 2 ... blocks, as `num_speculative_tokens` "auto" chose
        or the options fix it.
    drafts_ahead: rounds whose draft was made while the target verified the one before. Forwards of a draft made ahead,
        kept or not, count in the next round that drafts.
    """

    tokens: int = 0
    prompt_tokens: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    rounds: int = 0
    target_forwards: int = 0
    draft_forwards: int = 0
    drafts_ahead: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    committed_tokens: int = 0
    query_tokens: int = 0
    acceptance_histogram: list[int] = field(default_factory=list)
    window_histogram: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    accept_seconds: float = 0.0
    seconds: float = 0.0

    def count_round(
        self, window: int, forwards: int, ahead: int, query_tokens: int, draft: float, verify: float, accept: float
    ) -> None:
        """One round: a window of so many blocks, forwards of the draft model, a target forward over `query_tokens`
        rows, and the seconds of the three parts."""
        _count(self.window_histogram, window)
        self.rounds += 1
        self.target_forwards += 1
        self.draft_forwards += forwards
        self.drafts_ahead += ahead
        self.query_tokens += query_tokens
        self.draft_seconds += draft
        self.verify_seconds += verify
        self.accept_seconds += accept

    def count_drafts(self, accepted: int, drafted: int) -> None:
        """One round's drafted tokens, and how many of them were kept."""
        self.accepted_tokens += accepted
        self.drafted_tokens += drafted
        _count(self.acceptance_histogram, accepted)

    def count_request(self, other: Stats) -> None:
        """Adds what belongs to a request that has left, and not to the rounds it shared with others."""
        counts = ("tokens", "prompt_tokens", "drafted_tokens", "accepted_tokens", "committed_tokens")
        self._add(other, (*counts, "acceptance_histogram"))

    @classmethod
    def sum(cls, many: Iterable[Stats]) -> Stats:
        """Everything added up, as for the answers of one request."""
        total = cls()
        for one in many:
            total._add(one, [f.name for f in fields(cls)])
        return total

    def since(self, earlier: Stats) -> Stats:
        """What was counted since `earlier`, a copy of these figures."""
        names = [f.name for f in fields(Stats)]
        return Stats(**{name: _joined(getattr(self, name), getattr(earlier, name), sub) for name in names})

    def _add(self, other: Stats, names: Iterable[str]) -> None:
        """Adds the named figures."""
        for name in names:
            setattr(self, name, _joined(getattr(self, name), getattr(other, name), add))

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens; None where nothing was drafted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens committed per target forward, corrections and bonus included."""
        return self.committed_tokens / max(self.target_forwards, 1)

    @property
    def tokens_per_forward(self) -> float:
        """Tokens of the final text per target forward (prefill not counted)."""
        return self.tokens / max(self.target_forwards, 1)

    @property
    def query_tokens_per_forward(self) -> float:
        return self.query_tokens / max(self.target_forwards, 1)

    @property
    def tokens_per_second(self) -> float:
        """With prefill."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Without prefill."""
        spent = self.draft_seconds + self.verify_seconds + self.accept_seconds
        return self.tokens / spent if spent else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything counted and derived, ready for JSON."""
        derived = ("acceptance_rate", "mean_acceptance_length", "tokens_per_forward", "query_tokens_per_forward")
        rates = ("tokens_per_second", "decode_tokens_per_second")
        return asdict(self) | {name: getattr(self, name) for name in (*derived, *rates)}


def _count(histogram: list[int], at: int) -> None:
    histogram += [0] * (at + 1 - len(histogram))
    histogram[at] += 1


def _joined(one: Any, other: Any, how: Callable[[Any, Any], Any]) -> Any:
    """Two figures, or two histograms place by place."""
    if isinstance(one, list):
        return [how(mine, theirs) for mine, theirs in zip_longest(one, other, fillvalue=0)]
    return how(one, other)


@dataclass(eq=False)
class Sequence:
    """A request while it is decoded. `params` are resolved.

    text_ids: prompt and finished blocks, a multiple of the block length long.
    block:    the block under decoding, MASK where unknown; taken: steps taken in it.
    stored:   tokens of text_ids whose K/V the target's cache holds.
    text_end: characters of the text before a stop string, where one ended it.
    """

    index: int
    prompt_ids: list[int]
    params: SamplingParams
    stop_ids: frozenset[int]
    block_length: int
    mask_id: int
    text_ids: list[int] = field(init=False)
    block: list[int] = field(init=False)
    taken: int = 0
    stored: int = 0
    steps: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)
    stats: Stats = field(default_factory=Stats)
    trace: list[Any] = field(default_factory=list)
    finish_reason: str | None = None
    error: Exception | None = None
    token_ids: list[int] = field(default_factory=list)
    text_end: int | None = None
    started: float = 0.0

    def __post_init__(self) -> None:
        whole = len(self.prompt_ids) // self.block_length * self.block_length
        tail = self.prompt_ids[whole:]
        self.text_ids = self.prompt_ids[:whole]
        self._tail = len(tail)
        self._begin_block(tail)
        self.stats.prompt_tokens = len(self.prompt_ids)
        self.memory["prompt_length"] = len(self.prompt_ids)

    def _begin_block(self, known: list[int]) -> None:
        """A new block of which `known` is the beginning (the prompt's tail, in the first one)."""
        size = self.block_length
        self.block = known + [self.mask_id] * (size - len(known))
        self.taken = 0
        # step and log-probability of every position; -1 and 0 for the prompt's tail
        self._block_steps = [-1] * size
        self._block_logprobs = [0.0] * size

    @property
    def first_block(self) -> int:
        """Where the first decoded block begins."""
        return len(self.prompt_ids) - self._tail

    @property
    def blocks_left(self) -> int:
        """Blocks that decoding to max_tokens still needs, the current one included; at least 1."""
        end = len(self.prompt_ids) + self.params.max_tokens
        return max(1, -(-(end - len(self.text_ids)) // self.block_length))

    def put(
        self,
        tokens: list[list[int]],
        taken: list[list[int]],
        logprobs: list[list[float]] | None,
        finished: int,
        stored: int,
    ) -> int:
        """Takes over a round's window of blocks, and that K/V of `stored` tokens are there; returns how many tokens it
        committed. An interruption leaves the sequence as it was: another thread may go on with it."""
        before = self.stored, self.block, self.taken, [*self._block_steps], [*self._block_logprobs]
        lists = self.text_ids, self.steps, self.logprobs
        lengths = [len(values) for values in lists]
        try:
            self.stored = stored
            return self._put(tokens, taken, logprobs, finished)
        except BaseException:
            self.stored, self.block, self.taken, self._block_steps, self._block_logprobs = before
            self.finish_reason, self.token_ids = None, []
            for values, length in zip(lists, lengths, strict=True):
                del values[length:]
            raise

    def _put(
        self, tokens: list[list[int]], taken: list[list[int]], logprobs: list[list[float]] | None, finished: int
    ) -> int:
        count = 0
        for w, block in enumerate(tokens[: finished + 1]):
            if w > 0:
                self._begin_block([])
            self.block = block
            for place, step in enumerate(taken[w]):
                if step >= 0:
                    count += 1
                    self._block_steps[place] = step
                    if logprobs is not None:
                        self._block_logprobs[place] = logprobs[w][place]
                    self.taken = max(self.taken, step + 1)
            if w < finished:
                self.text_ids += block
                self.steps += self._block_steps
                self.logprobs += self._block_logprobs
                if self._ends():
                    return count
        if finished == len(tokens):
            self._begin_block([])
        return count

    def _ends(self) -> bool:
        """True, with token_ids and finish_reason set, once the finished blocks hold a stop id or max_tokens."""
        new = self.text_ids[len(self.prompt_ids) :]
        # only the newest block can hold a stop id: before it decoding would have ended
        recent = max(0, len(new) - self.block_length)
        for at in range(recent, min(len(new), self.params.max_tokens)):
            if new[at] in self.stop_ids:
                self.finish("stop", at)
                return True
        if len(new) >= self.params.max_tokens:
            self.finish("length", self.params.max_tokens)
            return True
        return False

    @property
    def generated(self) -> list[int]:
        """Ids generated so far in finished blocks, cut at the end once there is one."""
        if self.finish_reason is not None:
            return self.token_ids
        return self.text_ids[len(self.prompt_ids) :]

    def finish(self, reason: str, count: int) -> None:
        """Ends the sequence with its first `count` generated tokens."""
        begin = len(self.prompt_ids)
        self.token_ids = self.text_ids[begin : begin + count]
        self.stats.tokens = count
        self.finish_reason = reason

    def fail(self, error: Exception) -> None:
        """Ends the sequence with an error, and no token."""
        self.error = error
        self.finish("error", 0)

    def steps_of(self, begin: int, end: int) -> list[int]:
        """The reveal step, inside its block, of each generated token from `begin` to `end`."""
        return self.steps[self._tail + begin : self._tail + end]

    def logprobs_of(self, begin: int, end: int) -> list[float]:
        """log p of each generated token from `begin` to `end`; zeros unless asked for."""
        return self.logprobs[self._tail + begin : self._tail + end]

    @property
    def stop_token_id(self) -> int | None:
        """The id behind `token_ids` that ended them; None where something else did."""
        at = len(self.prompt_ids) + len(self.token_ids)
        return self.text_ids[at] if self.finish_reason == "stop" and self.text_end is None else None

    @property
    def token_steps(self) -> list[int]:
        """The reveal step of each of `token_ids` inside its block."""
        return self.steps_of(0, len(self.token_ids))

    @property
    def token_logprobs(self) -> list[float]:
        """log p of each of `token_ids`; zeros unless asked for."""
        return self.logprobs_of(0, len(self.token_ids))
