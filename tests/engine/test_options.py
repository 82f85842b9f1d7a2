from __future__ import annotations

import pytest

from simsd.engine.options import MOST_DRAFTED, DecodingOptions
from simsd.errors import ConfigError


@pytest.mark.parametrize("method", ["none", "simsd", "exact", "exact-draft-order"])
def test_a_window_has_the_same_bounds_for_every_method(method: str) -> None:
    for window in (1, MOST_DRAFTED, "auto"):
        asked = DecodingOptions(method=method, num_speculative_tokens=window)
        assert asked.resolve(has_draft_model=True).num_speculative_tokens == window
    for window in (0, MOST_DRAFTED + 1, 100_000, 10**30, 4.0, True, "4", None):
        with pytest.raises(ConfigError, match=r"num_speculative_tokens is .*; it must be a whole number from 1 to 64"):
            DecodingOptions(method=method, num_speculative_tokens=window).resolve(True)  # pyright: ignore[reportArgumentType]
