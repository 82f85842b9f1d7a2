"""The life of an application on a Ray cluster: connect, deploy, watch, end."""

from __future__ import annotations

import logging
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import HTTPOptions
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatus, LoggingConfig

from simsd.cluster.replicas import FAREWELL, NAME, application
from simsd.cluster.settings import Fleet, ReplicaPlan
from simsd.cluster.signals import Ending, caught
from simsd.errors import ConfigError, ModelError
from simsd.models.pair import placements
from simsd.serving.logs import event

OBJECT_STORE = 2**27  # bytes; only messages pass through it, and those are small
GLANCE = 0.2  # seconds between two looks at the signals
PERIOD = 25  # glances between two looks at the replicas
LATER = 10.0  # seconds that the proxy waits longer than the replica, whose error says more
QUIET = LoggingConfig(log_level="WARNING", enable_access_log=False)  # the application logs requests, with their ids
REACH = 10.0  # seconds for a cluster to accept a connection
PLACE = re.compile(r"(ray://)?(?P<host>.+):(?P<port>\d{1,5})")
CAUSE = re.compile(r"^simsd\.errors\.\w+: (.+)$", re.MULTILINE)
PLACING = ("dtype", "device", "draft_device", "quantize", "tensor_parallel_size")
LOST = (RayError, RayServeException, TimeoutError)  # what Ray raises of its own cluster


def run(plan: ReplicaPlan, fleet: Fleet, host: str, port: int, address: str | None = None) -> None:
    """Serves until SIGINT or SIGTERM. address: of a cluster that runs; None starts one on this machine.

    Raises: ConfigError where there is no such cluster, or no room in it; ModelError where no replica could start.
    """
    if address is None:  # here is where the replicas will look for it, and fail with far more words
        at = {name: plan.llm[name] for name in PLACING if name in plan.llm}
        placements(plan.llm.get("model"), plan.llm.get("draft_model"), **at)
    with caught() as ending, connected(address), deployed(plan, fleet, host, port, local=address is None) as url:
        ending.ready = True
        event("ready", url=url, model=plan.server.model_name, **_counts())
        _watch(ending)


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """A connection to a cluster; one that was started for it ends with it. Raises ConfigError."""
    own = {"include_dashboard": False, "object_store_memory": OBJECT_STORE} if address is None else {}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address is not None and (place := PLACE.fullmatch(address)):  # Ray itself would try for two minutes
            socket.create_connection((place["host"].strip("[]"), int(place["port"])), timeout=REACH).close()
        ray.init(address or "local", namespace=NAME, logging_level=logging.WARNING, **own)
    except (OSError, OverflowError, RuntimeError, ValueError, ImportError, RayError) as error:
        where = f"the Ray cluster {address!r} cannot be joined" if address else "no Ray cluster could be started here"
        raise ConfigError(f"{where} ({_cause(error)})") from error
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, handler)  # Ray has put its own there
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def deployed(plan: ReplicaPlan, fleet: Fleet, host: str, port: int, *, local: bool = True) -> Iterator[str | None]:
    """The application on the connected cluster, until its running requests have ended; yields the URL, if known.

    local: the cluster has no more than it shows now, nobody else uses it, and it ends with the connection.
    Raises: ConfigError, ModelError.
    """
    there = ray.cluster_resources()
    target = application(plan, fleet, there.get("GPU", 0.0))
    if local:
        _check_room(plan, fleet, there)
    before = serve.status()
    if NAME in before.applications:
        raise ConfigError(f"this cluster already runs an application {NAME!r}; end that first")
    shared = bool(before.proxies)
    try:
        if shared:
            event("serve_was_running", logging.WARNING, hint="its own host and port hold, not those given here")
        else:
            _start(HTTPOptions(host=host, port=port, request_timeout_s=plan.server.request_timeout + LATER))
        handle = _deploy(target)
        yield None if shared else f"http://{f'[{host}]' if ':' in host else host}:{port}"
        _delete(handle, plan.server.shutdown_timeout)
    finally:
        if not local:
            with suppress(*LOST):
                serve.delete(NAME) if shared else serve.shutdown()


def _start(http: HTTPOptions) -> None:
    try:
        serve.start(http_options=http, logging_config=QUIET)
    except (RuntimeError, *LOST) as error:
        raise ConfigError(f"Ray Serve cannot listen on {http.host}, port {http.port} ({_cause(error)})") from error


def _check_room(plan: ReplicaPlan, fleet: Fleet, there: Mapping[str, float]) -> None:
    one = plan.resources(there.get("GPU", 0.0))
    for kind, name in (("CPU", "num_cpus"), ("GPU", "num_gpus")):
        if fleet.min_replicas * one[name] > there.get(kind, 0.0):
            raise ConfigError(
                f"{fleet.min_replicas} replicas with {one[name]:g} {kind}s each do not fit: "
                f"this machine has {there.get(kind, 0.0):g}; lower --min-replicas"
            )


def _deploy(target: serve.Application) -> DeploymentHandle:
    """Returns when the least number of replicas can answer. Raises: ConfigError, ModelError."""
    try:
        return serve.run(target, name=NAME, route_prefix="/", logging_config=QUIET)
    except RuntimeError as error:
        causes = CAUSE.findall(_messages() or str(error))
        raise ModelError(causes[-1] if causes else f"no replica could start ({_cause(error)})") from error
    except RayServeException as error:
        raise ConfigError(f"Ray Serve refused the application ({_cause(error)})") from error


def _watch(ending: Ending) -> None:
    """Until the end is asked for, tells when the number of replicas changes."""
    known, glances = _counts(), 0
    while ending.signal is None:
        time.sleep(GLANCE)
        glances += 1
        if glances % PERIOD == 0 and (now := _counts()) != known:
            known = now
            event("replicas", **now)


def _delete(handle: DeploymentHandle, grace: float) -> None:
    """Takes the application away. What runs may end within `grace` seconds, and is ended by its replica then."""
    event("ending", **_counts())
    with suppress(*LOST):
        handle.broadcast("end_in", grace).results(timeout_s=FAREWELL, return_exceptions=True)
    deadline = time.monotonic() + grace + 2 * FAREWELL
    while True:
        try:
            return serve.delete(NAME)
        except TimeoutError:  # Ray Serve waits a minute at most
            if time.monotonic() > deadline:
                return None


def _counts() -> dict[str, Any]:
    """How many replicas are running, starting and so on; nothing while the cluster does not say."""
    try:
        found = serve.status().applications.get(NAME)
    except LOST:
        return {}
    states = [one.replica_states for one in found.deployments.values()] if found else []
    return {str(state).lower(): count for one in states for state, count in one.items()}


def _messages() -> str:
    found = serve.status().applications.get(NAME)
    if found is None or found.status is not ApplicationStatus.DEPLOY_FAILED:
        return ""
    return "\n".join([found.message, *(one.message for one in found.deployments.values())])


def _cause(error: Exception) -> str:
    """One line: of what comes from another process, with its traceback, the last."""
    lines = str(error).strip().splitlines()
    return lines[-1 if isinstance(error, RayError) else 0].rstrip(".") if lines else type(error).__name__
