"""A call as it travels from rank 0 to the others: name and plain arguments by pipe, tensors through the group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_ALIGNED = 8  # bytes: every tensor begins where any dtype may


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that comes through the group."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    @property
    def room(self) -> int:
        """Its bytes and what fills them up."""
        return -(-self.nbytes // _ALIGNED) * _ALIGNED


@dataclass(frozen=True)
class Call:
    """`Rank.name(*arguments)`, with a `TensorSpec` in place of each tensor."""

    name: str
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, name: str, arguments: Sequence[Any]) -> Call:
        return cls(name, tuple(TensorSpec(tuple(a.shape), a.dtype) if isinstance(a, Tensor) else a for a in arguments))

    @property
    def specs(self) -> list[TensorSpec]:
        return [one for one in self.arguments if isinstance(one, TensorSpec)]

    @property
    def nbytes(self) -> int:
        """Of the one buffer that holds all tensors."""
        return sum(spec.room for spec in self.specs)

    def filled(self, buffer: Tensor) -> tuple[Any, ...]:
        """The arguments, with the tensors from `buffer`, as `pack` made it."""
        ends = pairwise(accumulate((spec.room for spec in self.specs), initial=0))
        pieces = iter([buffer[begin:end] for begin, end in ends])

        def tensor(spec: TensorSpec) -> Tensor:
            return next(pieces)[: spec.nbytes].view(spec.dtype).view(spec.shape)

        return tuple(tensor(one) if isinstance(one, TensorSpec) else one for one in self.arguments)


def pack(arguments: Sequence[Any]) -> Tensor:
    """The tensors among the arguments as one buffer of bytes: one collective brings them all."""
    flat = [one.contiguous().flatten().view(torch.uint8) for one in arguments if isinstance(one, Tensor)]
    return torch.cat([F.pad(part, (0, -part.numel() % _ALIGNED)) for part in flat])
