"""Speculative decoding for block-diffusion language models (SimSD), exact and approximate.

    from simsd import LLM, SamplingParams

The names below are imported on first use, so `import simsd` and `simsd --help` load neither torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simsd.errors import (
        ConfigError,
        ModelError,
        NumericalError,
        PairError,
        PromptError,
        RoomError,
        SimsdError,
        WorkerError,
    )
    from simsd.generation import generate
    from simsd.llm import LLM, Completion, Piece, SamplingParams, Score, Stats

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Completion",
    "ConfigError",
    "ModelError",
    "NumericalError",
    "PairError",
    "Piece",
    "PromptError",
    "RoomError",
    "SamplingParams",
    "Score",
    "SimsdError",
    "Stats",
    "WorkerError",
    "__version__",
    "generate",
]

_HOME = {name: "simsd.errors" if name.endswith("Error") else "simsd.llm" for name in __all__ if name != "__version__"}
_HOME["generate"] = "simsd.generation"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'simsd' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # later look-ups do not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
