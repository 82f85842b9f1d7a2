"""Many at once and many in a row: everyone gets the own answer whole, no place is lost, memory does not grow."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import httpx
import pytest

from simsd import LLM, SamplingParams
from simsd.engine.request import Sequence
from simsd.serving.app import create_app
from simsd.serving.engine import Job
from simsd.serving.settings import ServerSettings
from tests.serving.support import CHAT, Server, asked, events, listening, running, text_of


def body(index: int) -> dict[str, Any]:
    """A request of its own: question, seed, length and method differ."""
    methods = ({"method": "none"}, {"method": "exact"}, {"remasking_strategy": "low_confidence_dynamic"})
    return {
        "text": f"question {index}",
        "seed": index,
        "temperature": (0.0, 1.0, 1.3)[index % 3],
        "max_tokens": 8 + index % 5 * 6,
        "simsd": methods[index % 3] | {"ignore_eos": True},
    }


def expected(llm: LLM, index: int) -> str:
    """The text of request `index`, decoded alone and in the ordinary way."""
    asked_for = body(index)
    schedule = asked_for["simsd"].get("remasking_strategy")
    params = SamplingParams(
        max_tokens=asked_for["max_tokens"],
        temperature=asked_for["temperature"],
        seed=asked_for["seed"],
        ignore_eos=True,
        remasking_strategy=schedule,
    )
    ordinary = llm.with_options(method="none")
    return ordinary.chat([{"role": "user", "content": asked_for["text"]}], params)[0].text


async def crowd(url: str, count: int) -> list[str]:
    """`count` streams opened at once; every third client leaves in the middle and its text is ""."""
    limits = httpx.Limits(max_connections=count)

    async def one(client: httpx.AsyncClient, index: int) -> str:
        async with client.stream("POST", CHAT, json=asked(stream=True, **body(index))) as response:
            assert response.status_code == 200
            lines = response.aiter_lines()
            if index % 3 == 2:
                await anext(lines)
                return ""
            text = "\n\n".join([line async for line in lines if line])
        return text_of(events(text))

    async with httpx.AsyncClient(base_url=url, timeout=600.0, limits=limits) as client:
        return await asyncio.gather(*(one(client, index) for index in range(count)))


def crowd_is_served(llm: LLM, count: int) -> None:
    app = create_app(llm, ServerSettings(max_waiting=count))
    with listening(app) as url:
        found = asyncio.run(crowd(url, count))
        for index, text in enumerate(found):
            assert text == ("" if index % 3 == 2 else expected(llm, index)), index
        while app.state.engine.open_jobs or app.state.pool.leased:
            pass  # those who left are out within a round
    assert all(not llm.busy for llm in schedulers(app.state.pool))


def schedulers(pool: Any) -> list[Any]:
    return [entry.llm._scheduler for entry in pool._entries.values()]


def test_a_crowd_of_streams_each_with_its_own_text(noise: LLM) -> None:
    crowd_is_served(noise, 60)


@pytest.mark.slow
def test_two_hundred_streams_of_the_embedded_pair(pair: LLM) -> None:
    crowd_is_served(pair, 200)


async def many_in_a_row(server: Server, count: int) -> None:
    for begin in range(0, count, 10):
        some = [server.post(stream=index % 2 == 0, **body(index)) for index in range(begin, begin + 10)]
        assert {response.status_code for response in await asyncio.gather(*some)} == {200}


def left_over(*kinds: type) -> int:
    gc.collect()
    return sum(type(found) in kinds for found in gc.get_objects())


def test_requests_leave_nothing_behind(noise: LLM) -> None:
    async def check() -> None:
        async with running(noise) as server:
            await many_in_a_row(server, 10)
            await server.settled()
            before = left_over(Sequence, Job)
            await many_in_a_row(server, 30)
            await server.settled()
            assert left_over(Sequence, Job) <= before

    asyncio.run(check())


@pytest.mark.slow
def test_memory_is_flat_over_two_thousand_requests(noise: LLM) -> None:
    def resident() -> int:
        gc.collect()
        with open("/proc/self/statm") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * 4096

    async def check() -> None:
        async with running(noise) as server:
            await many_in_a_row(server, 500)
            before = resident()
            await many_in_a_row(server, 2000)
            growth = resident() - before
            print(f"resident memory grew by {growth / 2**20:.2f} MiB from {before / 2**20:.0f} MiB")
            assert growth < 8 * 2**20

    asyncio.run(check())
