"""What clients are told of the library's errors."""

from __future__ import annotations

import asyncio

import pytest

from simsd import LLM, RoomError, WorkerError
from simsd.serving.errors import as_api_error
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


@pytest.mark.parametrize("error", [MemoryError(), RoomError("none"), type("OutOfMemoryError", (RuntimeError,), {})()])
def test_want_of_memory_passes_and_is_no_fault_of_the_client(error: BaseException) -> None:
    told = as_api_error(error, "req-1")
    assert (told.status, told.code) == (503, "out_of_memory")
    assert "retry-after" in told.headers
