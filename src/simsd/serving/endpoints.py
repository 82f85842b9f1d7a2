"""An endpoint that answers: from a request's body to the last byte of what the client gets."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from simsd.models.tokenizer import Tokenizer
from simsd.serving.answers import Answers, ask
from simsd.serving.connection import ClientGone, EventStream, until_gone
from simsd.serving.engine import Engine
from simsd.serving.logs import event
from simsd.serving.openai_format import Endpoint
from simsd.serving.pool import Pool
from simsd.serving.schemas import ChatRequest, CompletionRequest, parse
from simsd.serving.settings import ServerSettings
from simsd.serving.streams import ChunkWriter, events, first_of

CLIENT_LEFT = 499  # nobody reads it but the log


@dataclass(frozen=True)
class Answering:
    """An ASGI application for one path. What it asks of the engine it takes back at its end, however that comes.

    schema: of its requests. envelope: of its responses.
    """

    schema: type[ChatRequest] | type[CompletionRequest]
    envelope: type[Endpoint]
    pool: Pool
    engine: Engine
    settings: ServerSettings
    tokenizer: Tokenizer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        asked = parse(self.schema, request.headers.get("content-type", ""), await request.body())
        request_id = request.state.request_id
        try:
            await until_gone(self._answer(asked, request_id, scope, receive, send), receive)
        except (ClientGone, TimeoutError) as error:
            reason = "closed" if isinstance(error, ClientGone) else "stalled"
            event("client_gone", logging.INFO, request_id=request_id, reason=reason)
            if not asked.stream:
                await Response(status_code=CLIENT_LEFT)(scope, receive, send)

    async def _answer(
        self, asked: ChatRequest | CompletionRequest, request_id: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        answers = await ask(asked, request_id, self.pool, self.engine, self.settings)
        try:
            response = await self._response(asked, answers, request_id)
            await response(scope, receive, send)
        finally:
            answers.cancel()  # of those that have ended this is nothing

    async def _response(self, asked: ChatRequest | CompletionRequest, answers: Answers, request_id: str) -> Response:
        """Once it is known to be no error."""
        envelope = self.envelope(self.settings.model_name, answers.method, self.tokenizer)
        if not asked.stream:
            return JSONResponse(envelope.whole(await answers.completions(), len(asked.prompts)))
        updates = await first_of(answers.updates())
        writer = ChunkWriter(envelope, asked, len(answers.jobs))
        return EventStream(events(updates, writer, request_id), self.settings.stall_timeout)
