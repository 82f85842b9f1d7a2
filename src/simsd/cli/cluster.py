"""`simsd serve --ray`: what its flags come to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simsd.errors import ConfigError

if TYPE_CHECKING:
    from simsd.cli.options import Decoding
    from simsd.cluster.settings import Fleet, ReplicaPlan
    from simsd.serving.settings import ServerSettings


def fleet(
    ray: bool,
    address: str | None,
    min_replicas: int | None,
    max_replicas: int | None,
    target_ongoing_requests: float | None,
) -> Fleet | None:
    """The replicas that are asked for; None is the one server in this process. Raises ConfigError."""
    asked = {"min_replicas": min_replicas, "max_replicas": max_replicas}
    asked |= {"target_ongoing_requests": target_ongoing_requests}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if not ray:
        for name in ("ray_address", *given) if address is not None else given:
            raise ConfigError(f"--{name.replace('_', '-')} is for many replicas; add --ray.")
        return None
    _check_installed()
    from simsd.cluster.settings import Fleet

    return Fleet(**given)


def plan(options: Decoding, settings: ServerSettings, log_format: str, max_num_seqs: int, **llm: Any) -> ReplicaPlan:
    """A replica for these flags; `llm` are further keyword arguments of its `LLM`. Raises ConfigError."""
    from simsd.cluster.settings import ReplicaPlan

    given = options.llm_options() | llm
    for name in ("model", "draft_model"):  # a replica has another working directory
        if given.get(name) is not None and Path(given[name]).is_dir():
            given[name] = str(Path(given[name]).resolve())
    return ReplicaPlan(given, settings, max_num_seqs, options.threads or 1, log_format)


def serve(plan: ReplicaPlan, fleet: Fleet, host: str, port: int, address: str | None) -> None:
    """Serves until it is told to end. Raises: ConfigError, ModelError."""
    from simsd.cluster.run import run
    from simsd.serving import logs

    logs.to_stream(plan.log_format)
    run(plan, fleet, host, port, address)


def _check_installed() -> None:
    # Ray reads these when it is imported: lines that differ in their figures alone are not the same line, and nothing
    # is reported to its makers unless the operator says so
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray.serve  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"--ray needs {error.name}; install the extra: pip install 'simsd[ray]'.") from error
