"""What the operator of a server may set, checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from simsd.engine.options import SamplingParams, number, whole
from simsd.errors import ConfigError

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s@]+", re.IGNORECASE)  # as browsers send it: without a path


@dataclass(frozen=True)
class ServerSettings:
    """Limits and defaults of one server.

    model_name: the name that clients ask for. api_key: None asks for none.
    max_waiting: requests that may wait for a place; beyond, clients get 429.
    request_timeout: seconds from arrival to the last token. shutdown_timeout: seconds that running requests get.
    stall_timeout: seconds that a client may take to send its request, or to take in what is ready.
    max_body_bytes: of a request. max_option_sets: sets of decoding options that have their own caches.
    allow_origins: web origins that a browser may call from; none by default.
    defaults: sampling of requests that do not say; max_tokens: likewise, None is what the endpoint's standard says.
    """

    model_name: str = "tiny"
    api_key: str | None = None
    max_waiting: int = 256
    request_timeout: float = 600.0
    shutdown_timeout: float = 30.0
    stall_timeout: float = 30.0
    max_body_bytes: int = 2**20
    max_option_sets: int = 8
    allow_origins: Sequence[str] = ()
    defaults: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        whole("max_waiting", self.max_waiting, 0)
        whole("max_body_bytes", self.max_body_bytes, 1024)
        whole("max_option_sets", self.max_option_sets, 1)
        if self.max_tokens is not None:
            whole("max_tokens", self.max_tokens, 1)
        for name in ("request_timeout", "shutdown_timeout", "stall_timeout"):
            number(name, getattr(self, name), 0.0, 1e9, open_low=name != "shutdown_timeout")
        for origin in self.allow_origins:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                raise ConfigError(f"the allowed origin {origin!r} is none; give one such as https://example.com, or *")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.strip()):
            raise ConfigError("the API key is empty or not ASCII; give one that fits into an HTTP header")
