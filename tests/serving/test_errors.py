"""What clients are told of the library's errors."""

from __future__ import annotations

import asyncio

import pytest

from simsd import LLM, WorkerError
from tests.serving.support import running

SAID = "rank 1 of the tensor-parallel ranks (process 77) was ended by SIGKILL; start again"


def test_a_lost_rank_is_the_servers_fault_and_shows_in_its_health(pair: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(self: LLM) -> None:
        raise WorkerError(SAID)

    async def check() -> None:
        async with running(pair) as server:
            assert (await server.client.get("/health")).status_code == 200
            monkeypatch.setattr(LLM, "step", lost)
            monkeypatch.setattr(LLM, "alive", False)
            for _ in range(2):
                response = await server.post()
                error = response.json()["error"]
                assert (response.status_code, error["code"], error["message"]) == (503, "worker_lost", SAID)
            response = await server.client.get("/health")
            assert (response.status_code, response.json()) == (503, {"status": "down"})

    asyncio.run(check())
