"""A split cache has what the engine asks of any cache."""

from __future__ import annotations

import inspect

import pytest

from simsd.distributed.model import ParallelCache
from simsd.models.protocol import Cache

MEMBERS = [name for name in vars(Cache) if not name.startswith("_")]


@pytest.mark.parametrize("name", MEMBERS)
def test_every_member_takes_the_same_arguments(name: str):
    asked, found = (inspect.getattr_static(kind, name) for kind in (Cache, ParallelCache))
    assert type(found) is type(asked)
    if not isinstance(asked, property):
        given = [[(p.name, p.default) for p in inspect.signature(one).parameters.values()] for one in (asked, found)]
        assert given[0] == given[1]
