from __future__ import annotations

import pytest

from simsd.engine.options import DecodingOptions
from simsd.engine.settings import EngineSettings


@pytest.mark.parametrize(("asked", "longest"), [(None, 256), (100, 100), (256, 256), (100_000, 256)])
def test_no_sequence_is_longer_than_asked_or_than_the_model_allows(asked: int | None, longest: int) -> None:
    assert EngineSettings(max_model_len=asked).longest(DecodingOptions(), 256) == longest
