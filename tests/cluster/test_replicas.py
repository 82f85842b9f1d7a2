"""A replica by itself, without a cluster, and what Ray Serve is told of it."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest

pytest.importorskip("ray.serve")

from ray import serve
from ray.exceptions import ActorDiedError
from starlette.types import Message, Receive, Scope, Send

from simsd.cluster.passage import Open, Passage
from simsd.cluster.replicas import Replica, application, deployment
from simsd.cluster.settings import Fleet, ReplicaPlan
from simsd.serving.settings import ServerSettings
from tests.serving.support import CHAT, asked, events

PLAN = ReplicaPlan(llm={"device": "cpu"}, server=ServerSettings(max_waiting=5, shutdown_timeout=7.0), max_num_seqs=3)


@asynccontextmanager
async def replica(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Replica, httpx.AsyncClient]]:
    """A replica as Ray Serve runs it: made, asked for its application, and that application's lifespan."""
    context = SimpleNamespace(replica_id=SimpleNamespace(unique_id="one"))
    monkeypatch.setattr(serve, "get_replica_context", lambda: context)
    found = Replica(PLAN)
    app = found.__serve_build_asgi_app__()
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://simsd.test", timeout=60.0)
    async with app.router.lifespan_context(app), client:
        yield found, client


def test_health_is_that_of_engine_and_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with replica(monkeypatch) as (found, client):
            found.check_health()
            assert (await client.get("/health")).status_code == 200
            assert 'engine="one"' in (await client.get("/metrics")).text
        with pytest.raises(RuntimeError, match="the engine's thread has ended"):
            found.check_health()

    asyncio.run(check())


def test_a_replica_that_lost_a_rank_ends_at_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a request, and without being asked for its health; the process would be gone then."""
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    monkeypatch.setattr("simsd.cluster.replicas.os._exit", ended.put)
    context = SimpleNamespace(replica_id=SimpleNamespace(unique_id="one"))
    monkeypatch.setattr(serve, "get_replica_context", lambda: context)
    found = Replica(ReplicaPlan(llm={"device": "cpu", "tensor_parallel_size": 2}))
    (rank,) = [one for one in psutil.Process().children() if "simsd.distributed" in " ".join(one.cmdline())]
    assert ended.empty()
    rank.kill()
    assert ended.get(timeout=60.0) == 1
    found._llm.close()


def test_the_request_id_in_the_answer_is_left_to_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with replica(monkeypatch) as (_, client):
            response = await client.post(CHAT, json=asked(model="other"), headers={"x-request-id": "mine"})
            assert response.status_code == 404
            assert "x-request-id" not in response.headers

    asyncio.run(check())


def test_a_proxy_that_is_lost_is_a_client_that_left() -> None:
    seen: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert count.requests == 1
        seen.append(await receive())

    async def receive() -> Message:
        raise ActorDiedError

    async def send(message: Message) -> None:
        raise AssertionError(message)

    count = Open()
    asyncio.run(Passage(app, count)({"type": "http"}, receive, send))
    assert seen == [{"type": "http.disconnect"}]
    assert count.requests == 0


def test_at_the_end_of_its_time_an_answer_ends_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with replica(monkeypatch) as (found, client):
            body = asked(stream=True, max_tokens=900, simsd={"ignore_eos": True, "method": "none"})
            answer = asyncio.ensure_future(client.post(CHAT, json=body))
            while 'model_name="tiny"} 1.0' not in (await client.get("/metrics")).text.split("waiting")[0]:
                await asyncio.sleep(0.01)
            await found.drain(0.0)
            found.check_health()  # it is not to be replaced by one that takes in what is new
            assert (await client.post(CHAT, json=asked())).status_code == 503
            assert answer.done()
            response = await answer
            last = events(response.text)[-1] if response.status_code == 200 else response.json()
            assert last["error"]["code"] == "shutting_down"

    asyncio.run(check())


def test_ray_serve_is_told_the_bounds() -> None:
    fixed = deployment(PLAN, Fleet(2), gpus=0)
    assert (fixed.num_replicas, fixed.max_ongoing_requests, fixed.max_queued_requests) == (2, 8, 8)
    assert fixed.ray_actor_options is not None and fixed.ray_actor_options["num_cpus"] == 1
    assert config(fixed).autoscaling_config is None
    assert config(fixed).graceful_shutdown_timeout_s > 7.0
    scaled = config(deployment(PLAN, Fleet(2, 6), gpus=0)).autoscaling_config
    assert (scaled.min_replicas, scaled.max_replicas, scaled.target_ongoing_requests) == (2, 6, 3)
    told = config(deployment(PLAN, Fleet(1, 2, target_ongoing_requests=1.5), gpus=0)).autoscaling_config
    assert told.target_ongoing_requests == 1.5


def config(found: serve.Deployment) -> Any:
    return found._deployment_config  # Ray Serve shows the bounds nowhere else


def test_a_replica_without_a_gpu_of_its_own_looks_for_none() -> None:
    def device(llm: dict[str, Any], gpus: float) -> str | None:
        (plan,) = application(ReplicaPlan(llm=llm), Fleet(), gpus)._bound_deployment.init_args
        return plan.llm.get("device")

    assert device({}, 0.0) == "cpu"
    assert device({}, 1.0) is None
    assert device({"device": "cuda:0"}, 0.0) == "cuda:0"
