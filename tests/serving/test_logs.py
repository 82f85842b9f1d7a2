"""The log: a line for each request with its id and figures, in two formats, and never a word of a prompt."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from simsd import LLM
from simsd.serving import logs
from tests.serving.support import FREELY, running


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


def test_what_has_a_line_of_its_own_is_not_told_twice(log: io.StringIO) -> None:
    logs.to_stream("text", log)
    uvicorn = logging.getLogger("uvicorn.error")
    for text in sorted(logs.TOLD):
        uvicorn.warning(text)
    uvicorn.warning("something else")
    assert log.getvalue().count("\n") == 1
    assert "something else" in log.getvalue()


def test_an_aborted_answer_has_its_true_count(noise: LLM, log: io.StringIO, allow: Callable[[int], None]) -> None:
    logs.to_stream("json", log)

    async def check() -> None:
        async with running(noise) as server:
            task = asyncio.create_task(server.post(max_tokens=200, simsd={"ignore_eos": True, "method": "none"}))
            while not server.engine.open_jobs:
                await asyncio.sleep(0)
            job = server.engine._waiting[0] if server.engine._waiting else server.engine._running[0]
            allow(12)
            while job.generation.decoded < 8:
                await asyncio.sleep(0)
            task.cancel()
            allow(FREELY)
            await server.settled()
            assert job.generation.decoded >= 8

    asyncio.run(check())
    (finished,) = [line for line in map(json.loads, log.getvalue().splitlines()) if line["event"] == "finished"]
    assert finished["reason"] == "abort"
    assert 8 <= finished["tokens"] < 200
