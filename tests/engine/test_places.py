"""What places hold: the longest common beginning in whole blocks, and where it is."""

from __future__ import annotations

import pytest

from simsd.engine.places import Places, Source, common

SIZE = 4
TEXT = list(range(20))


@pytest.mark.parametrize("length", range(21))
@pytest.mark.parametrize("differs", [*range(20), None])
def test_common_is_the_longest_equal_beginning_in_whole_blocks(length: int, differs: int | None) -> None:
    other = TEXT[:length]
    if differs is not None and differs < length:
        other[differs] = 99
    same = next((at for at, (a, b) in enumerate(zip(TEXT, other, strict=False)) if a != b), length)
    assert common(TEXT, other, SIZE) == common(other, TEXT, SIZE) == same // SIZE * SIZE


def test_the_longest_is_found_and_the_preferred_place_where_it_is_as_long() -> None:
    places = Places(SIZE)
    assert places.find(TEXT, 3) == Source(3, 0)
    places.hold(2, TEXT[:12])
    places.hold(0, TEXT[:8])
    assert places.find(TEXT, 0) == Source(2, 12)
    assert places.find(TEXT[:8], 0) == Source(0, 8)
    assert places.find(TEXT[:8], 2) == Source(2, 8)
    assert places.find([7, *TEXT], 1) == Source(1, 0)
