"""Clients that leave or stop reading, one ASGI message at a time: their places fall free, whatever they were doing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from simsd import LLM
from tests.serving.support import CHAT, FREELY, Server, asked, running

ENDLESS: dict[str, Any] = {"max_tokens": 10_000, "simsd": {"ignore_eos": True}}


class Caller:
    """A client that speaks ASGI: it leaves when `leave` is set, and takes a message in when `take` lets it."""

    def __init__(self, server: Server, take: Callable[[dict[str, Any]], Awaitable[None]], **body: Any) -> None:
        self.left = asyncio.Event()
        self.messages: list[dict[str, Any]] = []
        self._take = take
        self._body: bytes | None = json.dumps(asked(**body)).encode()
        headers = [(b"content-type", b"application/json")]
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": CHAT,
            "query_string": b"",
            "headers": headers,
        }
        self.task = asyncio.create_task(server.app(scope, self._receive, self._send))

    @property
    def status(self) -> int:
        return self.messages[0]["status"]

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.messages.append(message)
        await self._take(message)


async def at_once(message: dict[str, Any]) -> None:
    """Takes everything in."""


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_place(noise: LLM, allow: Callable[[int], None], stream: bool) -> None:
    async def check() -> None:
        async with running(noise) as server:
            callers = [Caller(server, at_once, stream=stream, **ENDLESS) for _ in range(5)]  # for four places
            while server.engine.open_jobs < 5:
                await asyncio.sleep(0)
            allow(3)
            for caller in callers:
                caller.left.set()
                await caller.task
            stays = Caller(server, at_once, **ENDLESS)
            allow(FREELY)
            await stays.task
            assert stays.status == 200
            await server.settled()
            assert await server.metric("vllm:request_success_total", finished_reason="abort") == 5

    asyncio.run(check())


def test_a_client_that_leaves_in_the_middle_of_its_stream(noise: LLM, allow: Callable[[int], None]) -> None:
    async def check() -> None:
        async with running(noise) as server:
            begun = asyncio.Event()

            async def take(message: dict[str, Any]) -> None:
                if message.get("body"):
                    begun.set()

            # its text is bytes that seldom make a character, but there is a chunk a round
            told = {"simsd": {"ignore_eos": True, "stream_rounds": True}}
            caller = Caller(server, take, stream=True, **ENDLESS | told)
            allow(1)
            await begun.wait()
            caller.left.set()
            await caller.task
            allow(FREELY)
            await server.settled()
            assert caller.status == 200
            assert b"[DONE]" not in b"".join(message.get("body", b"") for message in caller.messages)
            assert await server.metric("vllm:request_success_total", finished_reason="abort") == 1

    asyncio.run(check())


def test_a_client_that_takes_nothing_in_is_given_up_and_costs_nobody_a_place(noise: LLM) -> None:
    async def never(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def check() -> None:
        async with running(noise, stall_timeout=0.05) as server:
            stuck = [Caller(server, never, stream=True, **ENDLESS) for _ in range(6)]
            others = await asyncio.gather(*(server.json(max_tokens=8) for _ in range(6)))
            assert len({json.dumps(one["choices"]) for one in others}) == 1
            for caller in stuck:
                await caller.task
            await server.settled()

    asyncio.run(check())


def test_a_client_that_leaves_before_its_body_is_there(noise: LLM) -> None:
    async def check() -> None:
        async with running(noise) as server:
            sent: list[Any] = []

            async def receive() -> dict[str, Any]:
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                sent.append(message)

            scope = {"type": "http", "method": "POST", "path": CHAT, "query_string": b"", "headers": []}
            await server.app(scope, receive, send)
            assert sent == []
            assert server.engine.open_jobs == 0

    asyncio.run(check())


def test_a_server_that_is_stopped_finishes_what_runs(noise: LLM) -> None:
    async def check() -> None:
        async with running(noise) as server:
            expected = await server.json(**ENDLESS)
            callers = [Caller(server, at_once, **ENDLESS) for _ in range(6)]
            while server.engine.open_jobs < 6:
                await asyncio.sleep(0)
            await asyncio.to_thread(server.engine.close, 60.0)
            for caller in callers:
                await caller.task
                found = json.loads(b"".join(message.get("body", b"") for message in caller.messages))
                assert found["choices"] == expected["choices"]
            late = await server.post(max_tokens=8)
            assert (late.status_code, late.json()["error"]["code"]) == (503, "shutting_down")
            assert (await server.client.get("/health")).status_code == 503

    asyncio.run(check())
