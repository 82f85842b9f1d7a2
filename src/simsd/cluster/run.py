"""The life of an application on a Ray cluster: connect, deploy, watch, end."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import HTTPOptions
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatus, LoggingConfig

from simsd.cluster.check import check
from simsd.cluster.lines import json_lines
from simsd.cluster.replicas import FAREWELL, NAME, application
from simsd.cluster.settings import Fleet, ReplicaPlan
from simsd.cluster.signals import Ending, caught
from simsd.errors import ConfigError, ModelError
from simsd.serving.engine import LAST_ROUND
from simsd.serving.logs import event

OBJECT_STORE = 2**27  # bytes; only messages pass through it, and those are small
GLANCE = 0.2  # seconds between two looks at the signals
PERIOD = 25  # glances between two looks at the replicas
LINGER = 0.5  # seconds for a proxy to pass on the last piece of an answer
LATER = 10.0  # seconds that the proxy waits longer than the replica, whose error says more
QUIET = LoggingConfig(log_level="WARNING", enable_access_log=False)  # the application logs requests, with their ids
# Ray gives up on a proxy that is silent for five seconds: for one that starts while models load on all cores, too few.
PATIENCE = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60", "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60"}
REACH = 10.0  # seconds for a cluster to accept a connection
PLACE = re.compile(r"(ray://)?(?P<host>.+):(?P<port>\d{1,5})")
CAUSE = re.compile(r"^simsd\.errors\.\w+: (.+)$", re.MULTILINE)
LOST = (RayError, RayServeException, TimeoutError)  # what Ray raises of its own cluster


def run(plan: ReplicaPlan, fleet: Fleet, host: str, port: int, address: str | None = None) -> None:
    """Serves until SIGINT or SIGTERM. address: of a cluster that runs; None starts one on this machine.

    Raises: ConfigError where there is no such cluster, or no room in it; ModelError where no replica could start.
    """
    check(plan, here=address is None)  # a replica would fail with far more words
    log, local = json_lines() if plan.log_format == "json" else nullcontext(), address is None
    with caught() as ending, log, connected(address), deployed(plan, fleet, host, port, local=local) as url:
        ending.ready = True
        event("ready", url=url, model=plan.server.model_name, **_counts())
        _watch(ending)


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """A connection to a cluster; one that was started for it ends with it. Raises ConfigError."""
    own = {"include_dashboard": False, "object_store_memory": OBJECT_STORE} if address is None else {}
    handler = signal.getsignal(signal.SIGTERM)
    for name, seconds in PATIENCE.items():  # a cluster that is started here takes them over
        os.environ.setdefault(name, seconds)
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
    shared, orderly = bool(before.proxies), False
    try:
        if shared:
            event("serve_was_running", logging.WARNING, hint="its own host and port hold, not those given here")
        else:
            _start(HTTPOptions(host=host, port=port, request_timeout_s=plan.server.request_timeout + LATER))
        handle = _deploy(target)
        yield None if shared else f"http://{f'[{host}]' if ':' in host else host}:{port}"
        _drain(handle, plan.server.shutdown_timeout)
        orderly = True
    finally:
        if orderly or not local:  # what is left of a local one ends with the connection
            with suppress(*LOST):
                serve.delete(NAME) if shared else serve.shutdown()  # and with it, first of all, the proxies


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


def _drain(handle: DeploymentHandle, grace: float) -> None:
    """Lets the replicas finish what runs, for `grace` seconds, while they refuse what is new. Taking the application
    away at once would have the proxies answer that it never was there."""
    event("ending", **_counts())
    with suppress(*LOST):
        handle.broadcast("drain", grace).results(timeout_s=grace + LAST_ROUND + FAREWELL, return_exceptions=True)
    time.sleep(LINGER)


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
