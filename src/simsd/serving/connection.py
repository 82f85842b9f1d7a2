"""The client's end of a connection: it may leave at any time, and it may not take in what is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


class ClientGone(Exception):  # noqa: N818 - no error: the client has what it wanted
    """The client closed the connection."""


async def until_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """The result of `work`, which is cancelled when the client leaves. Raises: ClientGone, or what `work` raises."""
    task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for one in (task, leaving):
            one.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events as they come. Raises TimeoutError where the client takes none in for `stall` seconds."""

    def __init__(self, events: AsyncIterator[bytes], stall: float) -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},  # proxies must not collect chunks
        )
        del self.headers["content-length"]
        self._events = events
        self._stall = stall

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._events:
            await self._send(send, data, more=True)
        await self._send(send, b"", more=False)

    async def _send(self, send: Send, data: bytes, *, more: bool) -> None:
        with anyio.fail_after(self._stall):  # asyncio's own `wait_for` may lose a cancellation before Python 3.12
            await send({"type": "http.response.body", "body": data, "more_body": more})
