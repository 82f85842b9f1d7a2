"""How many replicas there are, how much each takes in, and what each needs of its machine. Nothing here loads Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simsd.engine.options import number, whole
from simsd.errors import ConfigError
from simsd.serving.settings import ServerSettings

GPU = "cuda"


@dataclass(frozen=True)
class Fleet:
    """From `min_replicas` to `max_replicas` servers, as many as keep each at `target_ongoing_requests` or below.

    max_replicas: None is `min_replicas`, a fixed number. target_ongoing_requests: running and waiting ones of one
    replica; None is the number of its places.
    """

    min_replicas: int = 1
    max_replicas: int | None = None
    target_ongoing_requests: float | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        whole("min_replicas", self.min_replicas, 1)
        if self.max_replicas is not None:
            whole("max_replicas", self.max_replicas, 1)
            if self.max_replicas < self.min_replicas:
                raise ConfigError(
                    f"max_replicas is {self.max_replicas}, less than min_replicas, {self.min_replicas}; raise it"
                )
        if self.target_ongoing_requests is not None:
            number("target_ongoing_requests", self.target_ongoing_requests, 0.0, 1e9, open_low=True)
            if self.fixed:
                raise ConfigError(
                    f"target_ongoing_requests decides among numbers of replicas, and there is only one, "
                    f"{self.min_replicas}; give a larger max_replicas"
                )

    @property
    def fixed(self) -> bool:
        """The number of replicas does not follow the load."""
        return self.max_replicas in (None, self.min_replicas)


@dataclass(frozen=True)
class ReplicaPlan:
    """What one replica is: an `LLM` and the server around it.

    llm: further keyword arguments of `LLM`. threads: of the CPU. log_format: as of `simsd serve`.
    """

    llm: Mapping[str, Any] = field(default_factory=dict)
    server: ServerSettings = field(default_factory=ServerSettings)
    max_num_seqs: int = 16
    threads: int = 1
    log_format: str = "text"

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        whole("max_num_seqs", self.max_num_seqs, 1)

    @property
    def capacity(self) -> int:
        """Requests that one replica takes in."""
        return self.max_num_seqs + self.server.max_waiting

    def resources(self, gpus_there: float) -> dict[str, float]:
        """CPUs and GPUs of one replica, as Ray counts them. gpus_there: of the whole cluster."""
        named = [name for name in (self.llm.get("device"), self.llm.get("draft_device")) if name not in (None, "auto")]
        ranks = self.llm.get("tensor_parallel_size", 1)
        if not any(name.startswith(GPU) for name in named) and (named or not gpus_there):
            return {"num_cpus": float(max(self.threads, ranks)), "num_gpus": 0.0}  # ranks share the threads
        most = max((1 + _index(name) for name in named), default=1)
        return {"num_cpus": 1.0, "num_gpus": float(max(most, ranks))}


def _index(device: str) -> int:
    """3 of "cuda:3", 0 of "cuda" and "cpu"."""
    _, _, index = device.partition(":")
    return int(index) if index.isdecimal() else 0
