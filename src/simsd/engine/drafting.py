"""Which drafter the options name."""

from __future__ import annotations

from collections.abc import Callable

from simsd.drafters.base import Drafter
from simsd.drafters.lookup import LookupDrafter
from simsd.drafters.model import ModelDrafter
from simsd.drafters.self import SelfDrafter
from simsd.drafters.trajectory import TrajectoryDrafter
from simsd.engine.options import DecodingOptions
from simsd.engine.runner import Runner


def make_drafter(options: DecodingOptions, draft_runner: Callable[[], Runner]) -> Drafter | None:
    """A new drafter for resolved options; None is ordinary decoding. draft_runner: makes that of the draft model."""
    if options.method == "none":
        return None
    if options.drafter in ("model", "hybrid"):
        hybrid = options.drafter == "hybrid"
        return ModelDrafter(draft_runner(), options.block_length, options.draft_steps, target_first=hybrid)
    simple: dict[str | None, Callable[[], Drafter]] = {
        "self": SelfDrafter,
        "lookup": LookupDrafter,
        "trajectory": TrajectoryDrafter,
    }
    return simple[options.drafter]()
