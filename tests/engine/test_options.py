from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

from simsd.engine.options import LOADING, MOST_DRAFTED, DecodingOptions, check_names
from simsd.engine.settings import EngineSettings
from simsd.errors import ConfigError
from simsd.llm import LLM


@pytest.mark.parametrize("method", ["none", "simsd", "exact", "exact-draft-order"])
def test_a_window_has_the_same_bounds_for_every_method(method: str) -> None:
    for window in (1, MOST_DRAFTED, "auto"):
        asked = DecodingOptions(method=method, num_speculative_tokens=window)
        assert asked.resolve(has_draft_model=True).num_speculative_tokens == window
    for window in (0, MOST_DRAFTED + 1, 100_000, 10**30, 4.0, True, "4", None):
        with pytest.raises(ConfigError, match=r"num_speculative_tokens is .*; it must be a whole number from 1 to 64"):
            DecodingOptions(method=method, num_speculative_tokens=window).resolve(True)  # pyright: ignore[reportArgumentType]


def test_every_argument_is_of_loading_or_can_be_changed() -> None:
    arguments = [name for name in inspect.signature(LLM.__init__).parameters if name not in ("self", "options")]
    changeable = {f.name for cls in (DecodingOptions, EngineSettings) for f in fields(cls)}
    assert [name for name in arguments if name not in changeable] == list(LOADING)
    assert changeable.isdisjoint(LOADING)


@pytest.mark.parametrize("name", LOADING)
def test_what_is_fixed_by_loading_is_said_to_be(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} is fixed when the model is loaded; give it to LLM\(\.\.\.\)$"):
        check_names([name])


def test_threads_are_pytorchs() -> None:
    with pytest.raises(ConfigError, match=r"threads .*torch\.set_num_threads"):
        check_names(["threads", "unheard_of"])
    with pytest.raises(ConfigError, match="unknown option 'gamma'"):
        check_names(["gamma"])
