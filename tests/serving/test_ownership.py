"""Whoever has opened answers takes them back, at whatever moment it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from simsd import LLM
from tests.serving.support import FREELY, running
from tests.serving.test_connection import ENDLESS, Caller, at_once


@pytest.mark.parametrize("stream", [False, True])
def test_a_handler_that_is_cancelled_at_any_moment_leaves_no_job_behind(
    noise: LLM, allow: Callable[[int], None], stream: bool
) -> None:
    """Also twice: once while it runs, and once more while it cleans up."""

    async def stopped(caller: Caller, moment: int, pause: int) -> None:
        for _ in range(moment):
            await asyncio.sleep(0.0004)
        for _ in range(2):
            caller.task.cancel()
            for _ in range(pause):
                await asyncio.sleep(0)
        with suppress(asyncio.CancelledError):
            await caller.task

    async def check() -> None:
        async with running(noise) as server:
            told = {"simsd": {"ignore_eos": True, "stream_rounds": stream}}
            for moment in range(30):
                for pause in range(3):
                    allow(1)
                    await stopped(Caller(server, at_once, stream=stream, **ENDLESS | told), moment, pause)
            allow(FREELY)
            await server.settled()
            assert await server.metric("vllm:request_success_total", finished_reason="length") == 0
            assert await server.metric("vllm:request_success_total", finished_reason="abort") > 0

    asyncio.run(check())


def test_a_client_that_leaves_just_as_its_stream_begins(noise: LLM, allow: Callable[[int], None]) -> None:
    """Leaving and the first piece come in the same turn of the event loop."""

    async def check() -> None:
        async with running(noise) as server:
            for turns in range(12):
                told = {"simsd": {"ignore_eos": True, "stream_rounds": True}}
                caller = Caller(server, at_once, stream=True, **ENDLESS | told)
                while not server.engine.open_jobs:
                    await asyncio.sleep(0)
                allow(1)
                for _ in range(turns):
                    await asyncio.sleep(0)
                caller.left.set()
                caller.task.cancel()
                with suppress(asyncio.CancelledError):
                    await caller.task
            allow(FREELY)
            await server.settled()
            assert await server.metric("vllm:request_success_total", finished_reason="length") == 0

    asyncio.run(check())
