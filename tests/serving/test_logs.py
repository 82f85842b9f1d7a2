"""The log: a line for each request with its id and figures, in two formats, and never a word of a prompt."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from simsd import LLM
from simsd.serving import logs
from tests.serving.support import running


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    names = (logs.LOGGER.name, "uvicorn")
    before = [(logging.getLogger(n), logging.getLogger(n).handlers, logging.getLogger(n).propagate) for n in names]
    yield io.StringIO()
    for logger, handlers, propagate in before:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(logging.NOTSET)


def test_each_request_leaves_two_lines_with_its_id(noise: LLM, log: io.StringIO) -> None:
    logs.to_stream("json", log)

    async def check() -> None:
        async with running(noise) as server:
            server.client.headers["x-request-id"] = "my-id.1"
            found = await server.post(text="a secret", max_tokens=5, simsd={"ignore_eos": True})
            assert found.headers["x-request-id"] == "my-id.1"
            server.client.headers["x-request-id"] = "too long " * 20
            other = await server.post(text="a secret", temperature=-1)
            assert other.headers["x-request-id"].startswith("req-")
            await server.client.get("/health")

    asyncio.run(check())
    lines: list[dict[str, Any]] = [json.loads(line) for line in log.getvalue().splitlines()]
    finished, request, refused = lines[:3]
    assert (finished["event"], finished["request_id"]) == ("finished", "my-id.1")
    assert (finished["tokens"], finished["reason"], finished["choice"]) == (5, "length", 0)
    assert 0 <= finished["queue_seconds"] <= finished["seconds"]
    assert (request["event"], request["request_id"], request["status"]) == ("request", "my-id.1", 200)
    assert (refused["event"], refused["status"], refused["path"]) == ("request", 400, "/v1/chat/completions")
    assert [line["event"] for line in lines[3:]] == ["stopped"]
    assert "secret" not in log.getvalue()
    assert all(line["time"].endswith("Z") and line["level"] == "INFO" for line in lines)


def test_the_text_format_is_one_line_of_pairs(log: io.StringIO) -> None:
    logs.to_stream("text", log)
    logs.event("request", path="/v1 x", status=200, seconds=0.123456, empty="", broken="a\nb")
    (line,) = log.getvalue().splitlines()
    assert line.split(" ", 1)[1] == 'INFO request path="/v1 x" status=200 seconds=0.1235 empty="" broken="a\\nb"'


@pytest.mark.parametrize("style", ["json", "text"])
def test_a_traceback_goes_to_the_log(style: str, log: io.StringIO) -> None:
    logs.to_stream(style, log)
    try:
        raise ValueError("an inner detail")
    except ValueError as error:
        logs.event("round_failed", logging.ERROR, failure=error)
    assert "an inner detail" in log.getvalue()
    assert "Traceback" in log.getvalue()
