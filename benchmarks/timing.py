"""How long a call takes, and a forward."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from simsd.engine.costs import forward_of
from simsd.engine.runner import Runner
from simsd.models.transformer import Transformer

BLOCK = 4
REPEATS = 7


def median(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Seconds of a call, in steady state."""
    taken = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:])


def forward_call(model: Transformer, rows: int, prefix: int) -> Callable[[], object]:
    """A forward of so many query tokens behind a prefix, head included."""
    config = model.config
    assert config.mask_token_id is not None
    return forward_of(Runner(model, config.mask_token_id, BLOCK, config.max_position_embeddings), rows, prefix)
