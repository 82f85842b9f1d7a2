"""What every request of a replica passes first, on its way in from Ray Serve's proxy."""

from __future__ import annotations

from dataclasses import dataclass

from ray.exceptions import RayError
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass
class Open:
    """How many requests are being answered."""

    requests: int = 0


class Passage:
    """Counts the open requests, and leaves the header `x-request-id` to the proxy, which adds one in any case: the id
    that the client gave, or a new one; the replica has got the same."""

    def __init__(self, app: ASGIApp, count: Open) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_or_leave() -> Message:
            try:
                return await receive()
            except RayError:  # the proxy is gone, and the client with it
                return {"type": "http.disconnect"}

        async def send_without_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                del MutableHeaders(scope=message)["x-request-id"]
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._count.requests += 1
        try:
            await self._app(scope, receive_or_leave, send_without_id)
        finally:
            self._count.requests -= 1
