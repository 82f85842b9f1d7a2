"""How the engine runs, whatever it decodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from simsd.engine.options import truth, whole


@dataclass(frozen=True)
class EngineSettings:
    """What changes no text; `LLM` says what each means.

    Raises: ConfigError.
    """

    max_num_seqs: int = 16
    max_model_len: int | None = None
    prefix_caching: bool = True
    enforce_eager: bool = False
    trace: bool = False

    def __post_init__(self) -> None:
        whole("max_num_seqs", self.max_num_seqs, 1)
        if self.max_model_len is not None:
            whole("max_model_len", self.max_model_len, 2)
        for name in ("prefix_caching", "enforce_eager", "trace"):
            truth(name, getattr(self, name))

    def changed(self, given: Mapping[str, Any]) -> tuple[EngineSettings, dict[str, Any]]:
        """With those of the `given` values that are its own; and the others."""
        own = {f.name for f in fields(self)}
        mine = {name: value for name, value in given.items() if name in own}
        return replace(self, **mine), {name: value for name, value in given.items() if name not in own}
