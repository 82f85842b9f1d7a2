"""The routes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from simsd import __version__
from simsd.engine.options import SamplingParams
from simsd.errors import SimsdError
from simsd.llm import LLM
from simsd.serving.endpoints import Answering
from simsd.serving.engine import Engine
from simsd.serving.errors import ApiError, as_api_error
from simsd.serving.logs import event, shortened
from simsd.serving.metrics import Metrics
from simsd.serving.middleware import ApiKey, Cors, RequestLog, WholeBody, refuse
from simsd.serving.openai_format import ChatEndpoint, CompletionEndpoint, model_card
from simsd.serving.page import page_routes
from simsd.serving.pool import Pool
from simsd.serving.schemas import ChatRequest, CompletionRequest
from simsd.serving.settings import ServerSettings

READ = ["GET", "HEAD"]
WARM_UP = SamplingParams(max_tokens=16, ignore_eos=True)


def create_app(llm: LLM, settings: ServerSettings | None = None, engine_name: str = "0") -> FastAPI:
    """A server of `llm`, whose options are the defaults of requests. `app.state.engine` decodes while the app runs.

    engine_name: the label `engine` of its metrics, which tells several servers of one model apart.
    """
    settings = settings or ServerSettings()
    metrics = Metrics(settings.model_name, engine_name)
    pool = Pool(llm, settings.max_option_sets)
    engine = Engine(pool, llm.max_num_seqs, settings.max_waiting, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(_warm_up, pool)
        engine.start()
        try:
            yield
        finally:
            await asyncio.to_thread(engine.close, 0.0)  # who serves this has given the requests their time
            event("stopped", model=settings.model_name)

    # no generated schema: the interface is OpenAI's, and what differs is in docs/serving.md
    app = FastAPI(title="simsd", version=__version__, lifespan=lifespan, openapi_url=None, redirect_slashes=False)
    app.state.engine, app.state.pool, app.state.metrics, app.state.settings = engine, pool, metrics, settings
    _add_middleware(app, metrics, settings)
    _add_error_handlers(app)
    _add_status_routes(app, engine, metrics, llm, settings)

    for path, schema, envelope in (
        ("/v1/chat/completions", ChatRequest, ChatEndpoint),
        ("/v1/completions", CompletionRequest, CompletionEndpoint),
    ):
        answering = Answering(schema, envelope, pool, engine, settings, llm.tokenizer)
        app.router.routes.append(Route(path, answering, methods=["POST"]))
    app.router.routes.extend(page_routes())
    return app


def tell_shortened(llm: LLM, asked: int | None) -> None:
    """Says in the log that the model allows fewer tokens than the operator asked for, if it does."""
    if asked is not None and asked > llm.config.max_position_embeddings:
        event("max_model_len", logging.WARNING, asked=asked, model_allows=llm.max_model_len)


def _warm_up(pool: Pool) -> None:
    """What takes long once: measuring the forwards, making caches, and the first call of everything a request needs."""
    with suppress(SimsdError):  # of options or a template that refuse this; the requests will tell
        llm = pool.lease({})
        try:
            llm.prepare()
            if llm.tokenizer.chat_template is None:
                llm.generate("Hello", WARM_UP)
            else:
                llm.chat([{"role": "user", "content": "Hello"}], WARM_UP)
        finally:
            pool.release(llm)


def _add_status_routes(app: FastAPI, engine: Engine, metrics: Metrics, llm: LLM, settings: ServerSettings) -> None:
    model = model_card(settings.model_name, int(time.time()), llm, settings.defaults.temperature)

    @app.api_route("/v1/models", methods=READ)
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [model]})

    @app.api_route("/v1/models/{name:path}", methods=READ)
    async def one_model(name: str) -> Response:
        if name != settings.model_name:
            raise ApiError(f"the model {shortened(name)!r} does not exist here", status=404, code="model_not_found")
        return JSONResponse(model)

    @app.api_route("/health", methods=READ)
    async def health() -> Response:
        alive = engine.alive and llm.alive
        return JSONResponse({"status": "ok" if alive else "down"}, status_code=200 if alive else 503)

    @app.api_route("/metrics", methods=READ)
    async def scrape() -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)


def _add_middleware(app: FastAPI, metrics: Metrics, settings: ServerSettings) -> None:
    """The one added last is the outermost."""
    app.add_middleware(WholeBody, most=settings.max_body_bytes, patience=settings.stall_timeout)
    if settings.api_key is not None:
        app.add_middleware(ApiKey, key=settings.api_key)
    if settings.allow_origins:
        app.add_middleware(Cors, allow_origins=list(settings.allow_origins), allow_methods=["*"], allow_headers=["*"])
    app.add_middleware(RequestLog, metrics=metrics)


def _add_error_handlers(app: FastAPI) -> None:
    async def known(request: Request, error: Exception) -> Response:
        return refuse(as_api_error(error, request.state.request_id))

    async def of_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kind = "invalid_request_error" if error.status_code < 500 else "server_error"
        message = f"{request.method} {shortened(request.url.path)}: {error.detail}"
        return refuse(ApiError(message, status=error.status_code, kind=kind), dict(error.headers or {}))

    app.add_exception_handler(SimsdError, known)
    app.add_exception_handler(HTTPException, of_http)
