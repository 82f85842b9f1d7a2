"""Connections below HTTP: how many there may be, how long one may be silent, and what those get that speak no HTTP."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from simsd.errors import ConfigError
from simsd.serving.errors import ApiError, crowded, raw_response, request_late
from simsd.serving.logs import event

if TYPE_CHECKING:
    import asyncio

    from simsd.serving.server import ServerConfig

ACCEPTED_AT_ONCE = 16  # connections taken from the system's queue before any of them is looked at
ROOM = 32  # files that the process may open besides: those of the page, and of what it imports late
FEWEST = 16  # connections, for a server to be of use


def most_connections() -> int:
    """How many connections the open files of this process leave room for. Raises ConfigError where that is too few."""
    try:
        import resource

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        files = 2**20 if files == resource.RLIM_INFINITY else files
    except ImportError:  # Windows has no such limit
        return 2**14
    # those that are accepted, and those that are being closed, have files too
    most = files - sum(1 for _ in Path("/dev/fd").iterdir()) - ROOM - 3 * ACCEPTED_AT_ONCE
    if most < FEWEST:
        raise ConfigError(f"this process may have only {files} open files; give it 256 or more (ulimit -n)")
    return most


class ClientSocket(H11Protocol):
    """One connection.

    It is open for `patience` seconds without the head of a request. While it has no whole request of its client it
    makes room for a new connection where there are too many: a crowd of silent ones locks nobody out.
    """

    def __init__(self, config: ServerConfig, **more: Any) -> None:
        super().__init__(config, **more)
        self._most, self._patience = config.most_connections, config.patience
        self._since = time.monotonic()  # of the wait for a request
        self._spoke = False  # in this wait
        self._closing_since: float | None = None

    @property
    def answered(self) -> bool:
        """No answer is under way."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def idle(self) -> bool:
        """No request is whole that is not answered."""
        return self.answered or (self.cycle.more_body and not self.cycle.response_started)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) <= self._most:
            return
        others = [one for one in self.connections if isinstance(one, ClientSocket) and one is not self]
        rivals = [one for one in others if one.idle and not one.transport.is_closing()]
        if rivals:
            min(rivals, key=lambda one: one._since).give_up(crowded())
        else:
            self._refuse(crowded())

    def data_received(self, data: bytes) -> None:
        self._spoke = True
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._since, self._spoke = time.monotonic(), False
        super().on_response_complete()

    def sweep(self, now: float) -> None:
        """Ends what lasts too long; to be called every second or so.

        A body has a deadline of its own (`middleware.WholeBody`), and so has an answer that is not taken in.
        """
        if self.transport.is_closing():  # behind data that is not taken in, this would be for ever
            self._closing_since = self._closing_since or now
            if now > self._closing_since + self._patience:
                self.transport.abort()
        elif self.answered and now > self._since + self._patience:
            self.give_up(request_late(self._patience))

    def give_up(self, error: ApiError) -> None:
        """Closes the connection, and says why, if the client has begun a request and got nothing yet."""
        if self._spoke and (self.answered or not self.cycle.response_started):
            self._refuse(error)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's answer to what is no HTTP."""
        event("bad_http", client=self.client[0] if self.client else None)
        self.give_up(ApiError("this is not valid HTTP/1.1, or its head is too long", code="bad_http"))

    def _unsupported_upgrade_warning(self) -> None:
        """uvicorn's advice to install more; the request is answered as if it had not asked for another protocol."""

    def _refuse(self, error: ApiError) -> None:
        if not self.transport.is_closing():
            self.transport.write(raw_response(error))
        self.transport.close()
