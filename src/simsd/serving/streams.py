"""An answer as a stream of events: chunks of text, rounds if they are asked for, the statistics, [DONE]."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator

from simsd.engine.completion import Completion, Piece
from simsd.serving.engine import Update
from simsd.serving.errors import ApiError, as_api_error
from simsd.serving.logs import event
from simsd.serving.openai_format import DONE, Endpoint, Json, sse, usage
from simsd.serving.rounds import round_json
from simsd.serving.schemas import ChatRequest, CompletionRequest


class ChunkWriter:
    """Turns updates into chunks; it knows how far each choice has got."""

    def __init__(self, endpoint: Endpoint, request: ChatRequest | CompletionRequest, choices: int) -> None:
        self._endpoint = endpoint
        self._request = request
        self._sent: dict[int, int] = {}  # characters of each choice
        self._left = choices
        self._done: dict[int, Completion] = {}
        # with include_usage OpenAI's chunks have the key, null in all but the last
        self._more: Json = {"usage": None} if request.wants_usage else {}

    def chunks(self, update: Update) -> Iterator[Json]:
        """What one update comes to."""
        endpoint = self._endpoint
        for found in update.rounds:
            told = round_json(found, endpoint.tokenizer.token, layout=self._request.simsd.stream_layouts)
            yield endpoint.chunk([], simsd={"choice": update.choice, "round": told}, **self._more)
        if update.piece is None:
            return
        if update.choice not in self._sent:
            self._sent[update.choice] = 0
            for choice in endpoint.first(update.choice):
                yield endpoint.chunk([choice], **self._more)
        yield from self._text(update.choice, update.piece)
        self._sent[update.choice] += len(update.piece.text)

    def _text(self, choice: int, piece: Piece) -> Iterator[Json]:
        endpoint = self._endpoint
        parts = [endpoint.chunk([part], **self._more) for part in endpoint.delta(choice, piece, self._sent[choice])]
        if self._request.simsd.stream_steps and piece.token_ids:
            parts[0]["simsd"] = endpoint.steps_of(piece)
        if piece.completion is not None:
            self._done[choice] = piece.completion
            self._left -= 1
            if self._left == 0:
                parts[-1]["simsd"] = parts[-1].get("simsd", {}) | endpoint.extension(self._completions)
        yield from parts

    def usage(self) -> Iterator[Json]:
        """The chunk of counts after the last one, if it is asked for."""
        if self._request.wants_usage:
            yield self._endpoint.chunk([], usage=usage(self._completions, len(self._request.prompts)))

    @property
    def _completions(self) -> list[Completion]:
        return [self._done[choice] for choice in sorted(self._done)]


async def first_of(updates: AsyncIterator[Update]) -> AsyncIterator[Update]:
    """The same updates, once the first is there: until then an error can still be a status. Raises: ApiError."""
    first = await anext(updates)

    async def all_of_them() -> AsyncIterator[Update]:
        yield first
        async for update in updates:
            yield update

    return all_of_them()


async def events(updates: AsyncIterator[Update], writer: ChunkWriter, request_id: str) -> AsyncIterator[bytes]:
    """Server-sent events; an error on the way is one too."""
    try:
        async for update in updates:
            for chunk in writer.chunks(update):
                yield sse(chunk)
        for chunk in writer.usage():
            yield sse(chunk)
    except Exception as error:
        if not isinstance(error, ApiError):
            event("unexpected_error", logging.ERROR, failure=error, request_id=request_id)
        yield sse(as_api_error(error, request_id).to_dict())
    yield DONE
