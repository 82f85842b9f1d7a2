"""What every request passes: an id and a log line, the key, and a limit on its body."""

from __future__ import annotations

import logging
import re
import secrets
import time

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from simsd.serving.errors import ApiError, as_api_error
from simsd.serving.logs import event, shortened
from simsd.serving.metrics import Metrics

REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

QUIET = frozenset({"/health", "/metrics"})  # asked for every few seconds


class RequestLog:
    """Gives each request an id (its own `x-request-id`, if it is a plain one), logs it, and catches what nobody did."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = request_id
        begin, status = time.monotonic(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            event("unexpected_error", logging.ERROR, failure=error, request_id=request_id)
            if status == 0:
                await refuse(as_api_error(error, request_id))(scope, receive, send_with_id)
        finally:
            if status >= 400:
                self._metrics.error(status)
            level = logging.DEBUG if scope["path"] in QUIET and status < 400 else logging.INFO
            seconds = time.monotonic() - begin
            line = {"method": scope["method"], "path": scope["path"], "status": status, "seconds": seconds}
            event("request", level, request_id=request_id, **line)


class ApiKey:
    """Asks for `Authorization: Bearer KEY` on paths under /v1."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1") and not self._knows(scope):
            error = ApiError(
                "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
                status=401,
                kind="authentication_error",
                code="invalid_api_key",
            )
            await refuse(error, {"www-authenticate": "Bearer"})(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and secrets.compare_digest(key.strip().encode(), self._key)


class Cors(CORSMiddleware):
    """Starlette's, with the error object for who is refused."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        error = ApiError("pages of this origin may not call this server; its operator allows them by --allow-origin")
        return refuse(error, {name: value for name, value in response.headers.items() if name != "content-length"})


class WholeBody:
    """Reads the body before the application sees the request: not more than `most` bytes, and not for ever."""

    def __init__(self, app: ASGIApp, most: int, patience: float) -> None:
        self._app = app
        self._most = most
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            headers = Headers(scope=scope)
            self._check_encoding(headers.get("content-encoding", ""))
            self._check_length(headers.get("content-length", ""))
            with anyio.fail_after(self._patience):
                body = await self._read(receive)
        except TimeoutError:
            error = ApiError(f"the body did not arrive within {self._patience:g} s", status=408, kind="timeout_error")
            await refuse(error, {"connection": "close"})(scope, receive, send)
        except ApiError as error:
            await refuse(error, {"connection": "close"})(scope, receive, send)
        else:
            if body is not None:
                await self._app(scope, _replay(body, receive), send)

    @staticmethod
    def _check_encoding(encoding: str) -> None:
        if encoding.strip().lower() not in ("", "identity"):
            raise ApiError(f"the content encoding is {shortened(encoding)!r}; send the body as it is", status=415)

    def _check_length(self, length: str) -> None:
        if length.isdecimal() and int(length[:20]) > self._most:
            raise self._too_large()

    def _too_large(self) -> ApiError:
        return ApiError(
            f"the body is longer than {self._most} bytes; send a shorter prompt", status=413, code="body_too_large"
        )

    async def _read(self, receive: Receive) -> bytes | None:
        """The body, or None where the client left before its end."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._most:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)


def refuse(error: ApiError, headers: dict[str, str] | None = None) -> JSONResponse:
    """The response to a request that fails with this error."""
    return JSONResponse(error.to_dict(), status_code=error.status, headers=error.headers | (headers or {}))


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body in one message, and then what comes (the client's leaving)."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
