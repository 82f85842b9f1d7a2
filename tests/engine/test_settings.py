from __future__ import annotations

import pytest

from simsd.engine.options import DecodingOptions
from simsd.engine.settings import EngineSettings


@pytest.mark.parametrize("asked", [None, 2, 255, 256])
def test_what_the_model_allows_is_not_cut(asked: int | None) -> None:
    assert EngineSettings(max_model_len=asked).cut(256) is None


def test_what_is_cut_is_told_with_both_lengths() -> None:
    settings = EngineSettings(max_model_len=100_000)
    assert settings.longest(DecodingOptions(), 256) == 256
    told = settings.cut(256)
    assert told is not None
    assert "max_model_len is 100000" in told
    assert "256 tokens" in told
