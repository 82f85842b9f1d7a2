"""From a checked request to its answers: jobs for the engine, and what comes back of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

from simsd.engine.completion import Completion, Message, Prompt
from simsd.engine.generation import Generation
from simsd.errors import ConfigError, PromptError
from simsd.llm import LLM
from simsd.serving.engine import Engine, Job, Update
from simsd.serving.errors import ApiError, as_api_error
from simsd.serving.logs import shortened
from simsd.serving.pool import Pool
from simsd.serving.schemas import ChatRequest, CompletionRequest
from simsd.serving.settings import ServerSettings


class Answers:
    """The jobs of one request, and the queue on which their updates arrive. It lives in one event loop."""

    def __init__(self, engine: Engine, jobs: Sequence[Job], updates: asyncio.Queue[Update]) -> None:
        self.jobs = jobs
        self._engine = engine
        self._updates = updates

    @property
    def method(self) -> str:
        """The decoding method of all jobs."""
        return self.jobs[0].llm.options.method

    async def updates(self) -> AsyncIterator[Update]:
        """Updates of all choices as they come, until each has ended. Raises: ApiError, where one failed."""
        left = len(self.jobs)
        while left:
            update = await self._updates.get()
            if update.error is not None:
                raise update.error
            left -= update.last
            yield update

    async def completions(self) -> list[Completion]:
        """The results, in the order of the choices. Raises: ApiError."""
        found: dict[int, Completion] = {}
        async for update in self.updates():
            if update.piece is not None and update.piece.completion is not None:
                found[update.choice] = update.piece.completion
        return [found[choice] for choice in sorted(found)]

    def cancel(self) -> None:
        """Frees the places of what still runs."""
        self._engine.cancel(self.jobs)


async def ask(
    request: ChatRequest | CompletionRequest, request_id: str, pool: Pool, engine: Engine, settings: ServerSettings
) -> Answers:
    """Queues one job for each choice. Raises: ApiError, PromptError, ConfigError, ModelError."""
    arrived = time.monotonic()
    if request.model is not None and request.model != settings.model_name:
        raise ApiError(
            f"the model {shortened(request.model)!r} does not exist here; this server has {settings.model_name!r}",
            status=404,
            param="model",
            code="model_not_found",
        )
    count = len(request.prompts) * request.choices
    if count == 0:
        raise ApiError("the prompt is an empty list; give at least one", param="prompt")
    if count > engine.capacity:
        raise ApiError(f"{count} answers are asked for at once; this server takes {engine.capacity}", param="n")
    engine.check_room(count)  # before any work is done for a request that cannot stay
    with naming_fields(request):
        llm = pool.lease(request.simsd.decoding(), trace=request.simsd.stream_rounds, count=count)
    try:
        loop, updates = asyncio.get_running_loop(), asyncio.Queue[Update]()

        def deliver(update: Update) -> None:
            loop.call_soon_threadsafe(updates.put_nowait, update)

        # a long text takes a while to tokenize, and the others' streams go on meanwhile
        with naming_fields(request):
            generations = await asyncio.to_thread(_open, llm, request, settings)
        jobs = [
            Job(request_id, choice, llm, generation, deliver, settings.request_timeout, arrived)
            for choice, generation in enumerate(generations)
        ]
        engine.submit(jobs)
    except BaseException:
        pool.release(llm, count)
        raise
    return Answers(engine, jobs, updates)


@contextmanager
def naming_fields(request: ChatRequest | CompletionRequest) -> Iterator[None]:
    """Errors about an option or the prompt become those about the request's field. Raises: ApiError."""
    try:
        yield
    except PromptError as error:
        told = as_api_error(error, "")
        told.param = request.PROMPT
        raise told from None
    except ConfigError as error:
        field = None if error.option is None else request.field_of(error.option)
        message = str(error)
        if field is not None and message.startswith(f"{error.option} "):
            message = field + message.removeprefix(error.option or "")
        raise ApiError(message, param=field) from None


def _open(llm: LLM, request: ChatRequest | CompletionRequest, settings: ServerSettings) -> list[Generation]:
    """The request's sequences, those of one prompt after the other; a prompt is tokenized once."""
    found: list[Generation] = []
    for prompt in request.prompts:
        ids: Prompt | Sequence[Message] = prompt
        for _ in range(request.choices):
            params = request.sampling(settings.defaults, settings.max_tokens, len(found))
            found.append(llm.open(ids, params))
            ids = found[-1].sequence.prompt_ids
    return found
