"""Which drafter the options name."""

from __future__ import annotations

from collections.abc import Callable

import torch

from simsd.drafters.ahead import Ahead
from simsd.drafters.base import Drafter
from simsd.drafters.elsewhere import Elsewhere
from simsd.drafters.lookup import LookupDrafter
from simsd.drafters.model import ModelDrafter
from simsd.drafters.self import SelfDrafter
from simsd.drafters.trajectory import TrajectoryDrafter
from simsd.engine.options import DecodingOptions
from simsd.engine.runner import Runner
from simsd.errors import ConfigError


def make_drafter(
    options: DecodingOptions,
    draft_runner: Callable[[], Runner],
    device: torch.device,
    draft_ahead: bool | None = None,
) -> Drafter | None:
    """A new drafter for resolved options; None is ordinary decoding.

    draft_runner: makes that of the draft model. device: the target's. draft_ahead: whether it drafts while the target
    verifies, where it can; None: if it is on another device. Raises: ConfigError where that would be of no use.
    """
    if options.method == "none":
        return None
    if options.drafter in ("model", "hybrid"):
        runner, hybrid = draft_runner(), options.drafter == "hybrid"
        drafter: Drafter = ModelDrafter(runner, options.block_length, options.draft_steps, target_first=hybrid)
        there = runner.model.device
        apart = there != device
        if options.acceptance == "replay" and (apart if draft_ahead is None else draft_ahead):
            if there.type == "cuda" and not apart:
                raise ConfigError(
                    f"draft_ahead is True, but target and draft model share {there}, where each waits for the other; "
                    "leave it out, or put the draft model elsewhere with draft_device",
                    "draft_ahead",
                )
            drafter = Ahead(drafter)
        return Elsewhere(drafter, there) if apart else drafter
    simple: dict[str | None, Callable[[], Drafter]] = {
        "self": SelfDrafter,
        "lookup": LookupDrafter,
        "trajectory": TrajectoryDrafter,
    }
    return simple[options.drafter]()
