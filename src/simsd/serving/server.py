"""The process under the application: uvicorn with this server's limits, and an end at which every client is told."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import signal
import socket
import time
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from simsd.serving.engine import Engine
from simsd.serving.errors import shutting_down
from simsd.serving.logs import event
from simsd.serving.settings import ServerSettings
from simsd.serving.sockets import ACCEPTED_AT_ONCE, ClientSocket, most_connections

QUEUE = 1024  # connections that wait in the system until they are accepted
FAREWELL = 1.0  # seconds that clients get to take in how their answers ended
NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
EVERY = 10.0  # seconds between two log lines about the same lack


class ServerConfig(uvicorn.Config):
    """uvicorn's options as this server needs them."""

    def __init__(self, app: FastAPI, settings: ServerSettings, connections: int | None) -> None:
        self.most_connections = most_connections() if connections is None else connections
        self.patience = settings.stall_timeout
        super().__init__(
            app,
            http=ClientSocket,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,  # the application logs requests, with their ids
            server_header=False,
            backlog=ACCEPTED_AT_ONCE,
            # later than the server's own end: uvicorn's is without a word
            timeout_graceful_shutdown=math.ceil(settings.shutdown_timeout + 2 * FAREWELL),
        )


class Server(uvicorn.Server):
    """Serves the application. At a signal requests may finish in `shutdown_timeout` seconds, a second ends them."""

    def __init__(self, app: FastAPI, connections: int | None = None) -> None:
        """app: made by `create_app`. connections: the most there may be; None is as many as the open files allow.

        Raises: ConfigError.
        """
        self._engine: Engine = app.state.engine
        self._settings: ServerSettings = app.state.settings
        super().__init__(ServerConfig(app, self._settings, connections))
        self._hurried = False
        self._first: int | None = None  # signal

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until a signal comes, which then has its usual effect on the process, also where the event loop has
        swallowed it."""
        super().run(sockets)
        if self._first is not None:
            signal.raise_signal(self._first)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(LoopErrors())
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(QUEUE)  # uvicorn's backlog is also how many it accepts at once
            host, port = listener.getsockname()[:2]
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            event("ready", url=url, model=self._settings.model_name)

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # every second
            now = time.monotonic()
            for connection in self._connections():
                connection.sweep(now)
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self._hurried = True  # and not uvicorn's `force_exit`, which cuts everything off
        else:
            self._first = sig
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._end_answers())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end_answers(self) -> None:
        """When time is up or a second signal has come, tells all clients, and cuts off who does not take that in."""
        deadline = time.monotonic() + self._settings.shutdown_timeout
        while not self._hurried and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        reason = "second signal" if self._hurried else "shutdown_timeout"
        event("ending", logging.WARNING, reason=reason, unfinished=self._engine.open_jobs)
        self._engine.abort()
        for connection in self._connections():
            if connection.idle:
                connection.give_up(shutting_down())
        await asyncio.sleep(FAREWELL)
        for connection in self._connections():
            connection.transport.abort()

    def _connections(self) -> list[ClientSocket]:
        return [one for one in self.server_state.connections if isinstance(one, ClientSocket)]


class LoopErrors:
    """Logs what fails in the event loop itself; a lack that comes back at once, only now and then."""

    def __init__(self) -> None:
        self._told = -math.inf

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in NO_FILES:
            event("loop_error", logging.ERROR, failure=error, message=context.get("message"))
        elif time.monotonic() > self._told + EVERY:
            self._told = time.monotonic()
            event("no_connection_accepted", logging.ERROR, reason=error.strerror)
