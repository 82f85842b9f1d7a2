"""One request in the engine's hands: started, read piece by piece as its blocks are finished, or cancelled."""

from __future__ import annotations

from collections.abc import Iterator

from simsd.engine.completion import Completion, Piece, Prompt
from simsd.engine.request import Sequence
from simsd.engine.scheduler import Scheduler, count_for
from simsd.engine.trace import RoundTrace
from simsd.errors import SimsdError
from simsd.models.tokenizer import Tokenizer


class Generation:
    """The text of a sequence as it grows: whole characters, and nothing that may be the beginning of a stop string.

    The pieces of all `read` calls make up the completion. Made by `LLM.open`; `LLM.step` runs the rounds.
    """

    def __init__(
        self, prompt: Prompt, sequence: Sequence, scheduler: Scheduler, tokenizer: Tokenizer, *, trace: bool = False
    ) -> None:
        self.prompt = prompt
        self.sequence = sequence
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._trace = trace
        self._text = tokenizer.incremental()
        self._longest = max((len(stop) for stop in sequence.params.stop), default=1) - 1
        self._read = self._given = 0  # tokens turned into text, and tokens given out
        self._sent = self._held = ""

    def start(self) -> None:
        """Queues the sequence; rounds decode it from now on."""
        self._scheduler.add(self.sequence)

    def cancel(self) -> None:
        """Ends the sequence early, if it runs or waits; its place is free in the next round."""
        if not self.ended:
            self._scheduler.cancel(self.sequence)

    @property
    def ended(self) -> bool:
        return self.sequence.finish_reason is not None

    @property
    def decoded(self) -> int:
        """Tokens of the answer so far, in finished blocks."""
        return len(self.sequence.generated)

    def read(self) -> Piece | None:
        """What is new since the last call, None where nothing is. The last piece carries the completion.

        Raises: the sequence's error, where it failed.
        """
        with self._scheduler.lock:  # another thread may be running a round
            ids = self.sequence.generated
            ended = self.ended
        if ended:
            return self._last()
        if len(ids) == self._read:
            return None
        self._held += self._text.push(ids[self._read :])
        self._read = len(ids)
        ready = self._held[: len(self._held) - self._longest]  # the rest may be the beginning of a stop string
        if not ready:
            return None
        self._held, self._sent = self._held[len(ready) :], self._sent + ready
        stops = self.sequence.params.stop
        return self._piece(ready, ids, count_for(self._sent, ids, self._tokenizer.decode) if stops else len(ids))

    def pieces(self) -> Iterator[Piece]:
        """The whole of it, piece by piece, while it runs the rounds. Leaving the loop early cancels it."""
        self.start()
        try:
            while True:
                with self._scheduler.lock:  # another thread's round may end it
                    if not self.ended:
                        self._scheduler.step()
                piece = self.read()
                if piece is not None:
                    yield piece
                    if piece.completion is not None:
                        return
        finally:
            self.cancel()

    def rounds(self) -> list[RoundTrace]:
        """The rounds since the last call, for an LLM made with `trace=True`; the completion will lack them."""
        with self._scheduler.lock:
            taken, self.sequence.trace = self.sequence.trace, []
        return taken

    def completion(self) -> Completion:
        """The result of a sequence that has ended. Raises: the sequence's error, if it is one that nobody foresaw."""
        sequence, error = self.sequence, self.sequence.error
        assert sequence.finish_reason is not None
        if error is not None and not isinstance(error, SimsdError):
            raise error
        text = self._tokenizer.decode(sequence.token_ids)
        return Completion(
            prompt=self.prompt,
            text=text if sequence.text_end is None else text[: sequence.text_end],
            token_ids=sequence.token_ids,
            finish_reason=sequence.finish_reason,
            steps=sequence.token_steps,
            logprobs=sequence.token_logprobs if sequence.params.logprobs else None,
            stats=sequence.stats,
            stop_token_id=sequence.stop_token_id,
            trace=sequence.trace if self._trace else None,
            error=error,
        )

    def _last(self) -> Piece:
        if self.sequence.error is not None:
            raise self.sequence.error
        done = self.completion()
        return self._piece(done.text[len(self._sent) :], done.token_ids, len(done.token_ids), done)

    def _piece(self, text: str, ids: list[int], until: int, completion: Completion | None = None) -> Piece:
        begin, self._given = self._given, until
        logprobs = self.sequence.logprobs_of(begin, until) if self.sequence.params.logprobs else None
        return Piece(text, ids[begin:until], completion, self.sequence.steps_of(begin, until), logprobs)
