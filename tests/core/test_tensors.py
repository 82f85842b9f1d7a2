"""Tensors inside dataclasses: found, replaced, and left out of what a shape is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from simsd.core.tensors import kind, mapped, put, sent, tensors


@dataclass(frozen=True)
class Inner:
    values: Tensor
    name: str


@dataclass(frozen=True)
class Outer:
    first: Tensor
    inner: Inner
    nothing: Tensor | None
    host: frozenset[str]


def outer(size: int = 2, name: str = "a", nothing: Any = None) -> Outer:
    return Outer(torch.arange(size), Inner(torch.ones(size, 3), name), nothing, frozenset({"x"}))


def test_tensors_are_found_and_replaced_in_one_order():
    one = outer()
    assert [found.shape for found in tensors(one)] == [(2,), (2, 3)]
    count = iter(range(10))
    changed = mapped(one, lambda tensor: torch.full_like(tensor, next(count)))
    assert [found.unique().tolist() for found in tensors(changed)] == [[0], [1]]
    assert (changed.inner.name, changed.nothing, changed.host) == ("a", None, frozenset({"x"}))
    assert tensors(one.first) == [one.first]
    assert tensors([one.first]) == []


def test_the_kind_is_all_but_the_numbers():
    one = outer()
    assert kind(one) == kind(mapped(one, lambda tensor: tensor + 5))
    assert hash(kind(one)) == hash(kind(outer()))
    others = [outer(3), outer(name="b"), outer(nothing=torch.ones(1)), mapped(one, Tensor.double), one.inner, one.first]
    assert len({kind(one), *map(kind, others)}) == 1 + len(others)


def test_columns_come_as_they_were():
    columns = sent(torch.device("cpu"), [1, 2, 3], [], [2**62], [True, False])
    assert [column.tolist() for column in columns] == [[1, 2, 3], [], [2**62], [1, 0]]
    assert {column.dtype for column in columns} == {torch.long}
    assert put([0.1], torch.float64, torch.device("cpu")).tolist() == [0.1]
