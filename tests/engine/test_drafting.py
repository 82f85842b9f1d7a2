"""Which drafter comes of the options, of where the draft model is, and of what is wished."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from simsd.drafters.ahead import Ahead
from simsd.drafters.elsewhere import Elsewhere
from simsd.drafters.model import ModelDrafter
from simsd.engine.drafting import make_drafter
from simsd.engine.options import DecodingOptions
from simsd.errors import ConfigError

HERE, THERE = torch.device("cpu"), torch.device("meta")


def layers_of(
    device: torch.device, draft_ahead: bool | None, target: torch.device = HERE, **options: Any
) -> list[type]:
    """The drafter and all that it wraps, the outermost first."""
    runner: Any = SimpleNamespace(model=SimpleNamespace(device=device))
    drafter: Any = make_drafter(DecodingOptions(**options).resolve(True), lambda: runner, target, draft_ahead)
    found = []
    while drafter is not None:
        found.append(type(drafter))
        drafter = getattr(drafter, "drafter", None)
    return found


@pytest.mark.parametrize("drafter", ["model", "hybrid"])
def test_a_draft_model_of_another_device_drafts_ahead_unless_it_is_not_to(drafter: str):
    for wish in (None, True):
        assert layers_of(THERE, wish, drafter=drafter) == [Elsewhere, Ahead, ModelDrafter]
    assert layers_of(THERE, False, drafter=drafter) == [Elsewhere, ModelDrafter]


@pytest.mark.parametrize("drafter", ["model", "hybrid"])
def test_on_the_targets_device_it_does_so_only_if_it_is_to(drafter: str):
    for wish in (None, False):
        assert layers_of(HERE, wish, drafter=drafter) == [ModelDrafter]
    assert layers_of(HERE, True, drafter=drafter) == [Ahead, ModelDrafter]


@pytest.mark.parametrize("method", ["simsd", "exact-draft-order"])
def test_where_the_draft_is_drawn_anew_each_round_none_is_made_ahead(method: str):
    assert layers_of(THERE, True, method=method, drafter="model") == [Elsewhere, ModelDrafter]


def test_without_a_draft_model_there_is_nothing_to_do_ahead():
    assert layers_of(HERE, True, method="none") == []
    assert Ahead not in layers_of(HERE, True, drafter="self")


def test_on_one_gpu_it_is_refused_for_there_one_would_wait_for_the_other():
    one, other = torch.device("cuda:0"), torch.device("cuda:1")
    said = "draft_ahead is True, but target and draft model share cuda:0, .* with draft_device"
    with pytest.raises(ConfigError, match=said):
        layers_of(one, True, one, drafter="model")
    assert layers_of(one, None, one, drafter="model") == [ModelDrafter]
    assert layers_of(one, True, one, method="simsd", drafter="model") == [ModelDrafter]  # as ever
    assert layers_of(other, True, one, drafter="model") == [Elsewhere, Ahead, ModelDrafter]
