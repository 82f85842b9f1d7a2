"""Sets of decoding options: each in use has an `LLM` with caches of its own, all on the same weights."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simsd.engine.options import DecodingOptions
from simsd.errors import ConfigError
from simsd.llm import LLM
from simsd.serving.errors import options_busy

Key = tuple[DecodingOptions, bool]


@dataclass
class _Entry:
    llm: LLM
    leases: int = 0


class Pool:
    """At most `most` LLMs. Where another set of options comes, the one that was idle longest gives up its caches."""

    def __init__(self, base: LLM, most: int) -> None:
        """base: the server's default options; it lends its weights and decodes nothing itself."""
        self._base = base
        self._most = most
        self._lock = threading.Lock()
        self._entries: dict[Key, _Entry] = {}  # the longest unused first

    def lease(self, changes: Mapping[str, Any], *, trace: bool = False, count: int = 1) -> LLM:
        """The LLM for the default options with these changes, leased `count` times, each to be given back.

        Raises: ConfigError; ApiError (429) where all the others are in use.
        """
        fresh = self._base.with_options(**changes, trace=trace)  # cheap: caches are made when they are first used
        options = fresh.options
        if options.method != "none" and options.drafter == "trajectory":
            raise ConfigError(
                "drafter 'trajectory' needs a recorded decoding, which a request cannot bring along", "drafter"
            )
        with self._lock:
            entry = self._entries.pop((options, trace), None)
            if entry is None:
                self._make_room()
                entry = _Entry(fresh)
            entry.leases += count
            self._entries[options, trace] = entry
            return entry.llm

    def release(self, llm: LLM, count: int = 1) -> None:
        """Gives leases back."""
        with self._lock:
            for entry in self._entries.values():
                if entry.llm is llm:
                    entry.leases -= count

    def discard(self, llm: LLM) -> None:
        """Forgets an LLM whose caches can no longer be trusted; the next request gets a new one."""
        with self._lock:
            self._entries = {key: entry for key, entry in self._entries.items() if entry.llm is not llm}

    @property
    def leased(self) -> int:
        """Leases not yet given back."""
        with self._lock:
            return sum(entry.leases for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def _make_room(self) -> None:
        if len(self._entries) < self._most:
            return
        idle = next((key for key, entry in self._entries.items() if entry.leases == 0), None)
        if idle is None:
            raise options_busy(self._most)
        del self._entries[idle]
