"""One replica, and the Ray Serve application that is made of many."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace
from typing import Any

from fastapi import FastAPI
from ray import serve

from simsd.cluster.passage import Open, Passage
from simsd.cluster.settings import Fleet, ReplicaPlan
from simsd.errors import WorkerError
from simsd.serving.logs import event

NAME = "simsd"  # of the application
HEALTH_PERIOD = 2.0  # seconds between two looks at a replica, and so until a lost one is replaced
START_TRIES = 3  # a checkpoint that cannot be loaded cannot be loaded the twentieth time either
GLANCE = 0.05  # seconds between two looks at what is still open
FAREWELL = 5.0  # seconds for a replica to end, once its last answer has


class Replica:
    """One `LLM` behind the application that `simsd serve` runs; Ray Serve hands it the requests."""

    def __init__(self, plan: ReplicaPlan) -> None:
        import torch

        from simsd.llm import LLM
        from simsd.serving import logs
        from simsd.serving.app import create_app, tell_shortened

        logs.to_stream(plan.log_format)
        torch.set_num_threads(plan.threads)
        self._open, self._draining = Open(), False
        self._llm = LLM(**plan.llm, max_num_seqs=plan.max_num_seqs)
        self._llm.when_lost(_end_at_once)
        tell_shortened(self._llm, plan.llm.get("max_model_len"))
        self._app = create_app(self._llm, plan.server, serve.get_replica_context().replica_id.unique_id)
        self._app.add_middleware(Passage, count=self._open)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Ray Serve asks for the application by this name."""
        return self._app

    async def drain(self, seconds: float) -> None:
        """Refuses what is new, with status 503, and returns when all answers are out. They may end within this time;
        who is not finished then is told so. Ray Serve itself would end the process in the middle of them."""
        self._draining = True
        await asyncio.to_thread(self._app.state.engine.close, seconds)
        while self._open.requests:
            await asyncio.sleep(GLANCE)

    def check_health(self) -> None:
        """Ray Serve replaces the replica when this raises."""
        if not self._app.state.engine.alive and not self._draining:
            raise RuntimeError("the engine's thread has ended")


def _end_at_once(failure: WorkerError) -> None:
    """Ends the process. Ray Serve hands a replica that is gone nothing more from that moment on; one that has only
    become ill it would notice after three looks, and until then prefer it, since it fails so fast."""
    event("rank_lost", logging.ERROR, error=str(failure))
    os._exit(1)


def deployment(plan: ReplicaPlan, fleet: Fleet, gpus: float) -> serve.Deployment:
    """The replicas as Ray Serve shall keep them. gpus: of the whole cluster."""
    as_told = serve.deployment(
        name="Replica",
        ray_actor_options=plan.resources(gpus),
        max_ongoing_requests=plan.capacity,
        max_queued_requests=plan.capacity,  # where all replicas are full; without a bound it would grow for ever
        health_check_period_s=HEALTH_PERIOD,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=plan.server.shutdown_timeout + FAREWELL,
        max_constructor_retry_count=START_TRIES,
        **_number(plan, fleet),
    )
    return as_told(serve.ingress()(Replica))


def application(plan: ReplicaPlan, fleet: Fleet, gpus: float) -> serve.Application:
    """What `serve.run` takes."""
    found = deployment(plan, fleet, gpus)
    if not plan.resources(gpus)["num_gpus"]:  # a replica must not find by itself a GPU that was not reserved for it
        plan = replace(plan, llm={**plan.llm, "device": "cpu"})
    return found.bind(plan)


def _number(plan: ReplicaPlan, fleet: Fleet) -> dict[str, Any]:
    if fleet.fixed:
        return {"num_replicas": fleet.min_replicas}
    return {
        "autoscaling_config": {
            "min_replicas": fleet.min_replicas,
            "max_replicas": fleet.max_replicas,
            "target_ongoing_requests": fleet.target_ongoing_requests or plan.max_num_seqs,
        }
    }
