"""What a client is told when something goes wrong: OpenAI's error object, one sentence, never a traceback."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from simsd.errors import LongPromptError, ModelError, NumericalError, SimsdError, WorkerError
from simsd.serving.logs import shortened

MOST_MESSAGE = 380  # characters: what a client sent may be as long as a body, and its quotation not


class ApiError(SimsdError):
    """An error with its HTTP status.

    kind, param, code: as in OpenAI's error object. retry_after: seconds, where trying again makes sense.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def to_dict(self) -> dict[str, Any]:
        """The body of the response."""
        # a message may quote what the client sent, which need not be valid Unicode
        message = shortened(str(self), MOST_MESSAGE).encode("utf-8", "backslashreplace").decode("utf-8")
        param = None if self.param is None else shortened(self.param)
        return {"error": {"message": message, "type": self.kind, "param": param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"retry-after": str(self.retry_after)}


def queue_full(waiting: int, count: int, retry_after: int) -> ApiError:
    return ApiError(
        f"{waiting} answers are waited for already, and {count} more are too many; try again in {retry_after} s",
        status=429,
        kind="rate_limit_error",
        code="queue_full",
        retry_after=retry_after,
    )


def options_busy(most: int) -> ApiError:
    return ApiError(
        f"requests with {most} other sets of decoding options are running; try again, or use one of theirs",
        status=429,
        kind="rate_limit_error",
        code="options_busy",
        retry_after=1,
    )


def timed_out(seconds: float) -> ApiError:
    return ApiError(
        f"the request was not finished within {seconds:g} s; ask for fewer tokens, or try again later",
        status=504,
        kind="timeout_error",
        code="request_timeout",
    )


def shutting_down() -> ApiError:
    return ApiError(
        "the server is shutting down; try again later",
        status=503,
        kind="server_error",
        code="shutting_down",
        retry_after=5,
    )


def crowded() -> ApiError:
    return ApiError(
        "there are too many connections; try again later, and send requests at once when you are connected",
        status=503,
        kind="server_error",
        code="too_many_connections",
        retry_after=1,
    )


def request_late(seconds: float) -> ApiError:
    return ApiError(f"the request did not arrive within {seconds:g} s", status=408, kind="timeout_error")


def internal(request_id: str) -> ApiError:
    return ApiError(
        f"the server failed on this request; its log has the details under request id {request_id}",
        status=500,
        kind="server_error",
        code="internal_error",
    )


def no_memory() -> ApiError:
    return ApiError(
        "there was not enough memory for this request; try again later, or ask for fewer tokens",
        status=503,
        kind="server_error",
        code="out_of_memory",
        retry_after=5,
    )


def raw_response(error: ApiError) -> bytes:
    """The whole response, for a connection on which no request was understood; it is closed then."""
    body = json.dumps(error.to_dict()).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in (headers | error.headers).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def as_api_error(error: BaseException, request_id: str) -> ApiError:
    """What the client is told about an error of the library, or about one that nobody foresaw."""
    if isinstance(error, ApiError):
        return error
    # torch's own class is told by its name: it differs between devices
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return no_memory()
    if isinstance(error, NumericalError):
        return ApiError(str(error), status=500, kind="server_error", code="numerical_error")
    if isinstance(error, WorkerError):
        return ApiError(str(error), status=503, kind="server_error", code="worker_lost")
    if isinstance(error, ModelError):
        return ApiError(str(error), code="model_error")
    if isinstance(error, LongPromptError):  # without the advice, which is for operators
        return ApiError(f"{error.told}; shorten it", code="context_length_exceeded")
    if isinstance(error, SimsdError):
        return ApiError(str(error))
    return internal(request_id)
