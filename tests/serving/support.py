"""A server inside the test's own process: over its ASGI interface, or listening on a loopback port."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from simsd import LLM
from simsd.serving.app import create_app
from simsd.serving.engine import Engine
from simsd.serving.pool import Pool
from simsd.serving.server import Server as Process
from simsd.serving.settings import ServerSettings

FREELY = 10**6  # rounds, for the fixture `allow`
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
QUESTION = "Count from 28 in steps of 8, 12 numbers."
ANSWER = "28, 36, 44, 52, 60, 68, 76, 84, 92, 100, 108, 116."


def asked(text: str = QUESTION, **more: Any) -> dict[str, Any]:
    """The body of a chat request."""
    return {"model": "tiny", "messages": [{"role": "user", "content": text}]} | more


def events(text: str) -> list[dict[str, Any]]:
    """The chunks of an event stream, which must end with [DONE]."""
    lines = [line for line in text.split("\n\n") if line]
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """The text of one choice of a stream, of either endpoint."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


@dataclass
class Server:
    app: FastAPI
    client: httpx.AsyncClient

    @property
    def engine(self) -> Engine:
        return self.app.state.engine

    @property
    def pool(self) -> Pool:
        return self.app.state.pool

    async def post(self, path: str = CHAT, **body: Any) -> httpx.Response:
        return await self.client.post(path, json=asked(**body) if path == CHAT else {"model": "tiny"} | body)

    async def json(self, path: str = CHAT, **body: Any) -> dict[str, Any]:
        response = await self.post(path, **body)
        assert response.status_code == 200, response.text
        return response.json()

    async def stream(self, path: str = CHAT, **body: Any) -> list[dict[str, Any]]:
        response = await self.post(path, stream=True, **body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return events(response.text)

    async def settled(self) -> None:
        """Waits until no job is left; a leaked one would never go."""
        async with asyncio_timeout(60.0):
            while self.engine.open_jobs or self.pool.leased:
                await asyncio.sleep(0.01)

    async def metric(self, name: str, **labels: str) -> float:
        given = {"model_name": "tiny", "engine": "0"} | labels
        return self.app.state.metrics.registry.get_sample_value(name, given) or 0.0


@asynccontextmanager
async def asyncio_timeout(seconds: float) -> AsyncIterator[None]:
    """`asyncio.timeout`, which Python 3.10 lacks."""
    task = asyncio.current_task()
    assert task is not None
    timer = asyncio.get_running_loop().call_later(seconds, task.cancel)
    try:
        yield
    finally:
        timer.cancel()


@asynccontextmanager
async def running(llm: LLM, **settings: Any) -> AsyncIterator[Server]:
    """The application with its engine. When a test ends well, nothing of its requests may be left."""
    app = create_app(llm, ServerSettings(**settings))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://simsd.test", timeout=120.0) as client:
            server = Server(app, client)
            yield server
            await server.settled()


@contextmanager
def listening(app: FastAPI, connections: int | None = None) -> Iterator[str]:
    """The application on a loopback port, as `simsd serve` runs it (another one as uvicorn does); yields its URL."""
    ours = hasattr(app.state, "engine")
    server = Process(app, connections) if ours else uvicorn.Server(uvicorn.Config(app, log_config=None))
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60.0)
        listener.close()
