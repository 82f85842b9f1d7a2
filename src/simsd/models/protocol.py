"""What the engine asks of a model and of its cache. Whatever provides it can be target or draft."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class Cache(Protocol):
    """Keys and values of some sequences; `cache.KVCache` says what each member does."""

    @property
    def sequences(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    def slice(self, start: int, count: int) -> Any: ...

    def grow(self, capacity: int) -> None: ...

    def grow_sequences(self, sequences: int) -> None: ...

    def copy(self, src: int, dst: int, count: int) -> None: ...

    def swap(self, one: int, other: int, count: int) -> None: ...

    def clear(self, sequence: int, first: int = 0) -> None: ...


class Model(Protocol):
    """`(ids, positions, mask, cache) -> hidden`, and a head; `transformer.Transformer` says what the arguments are."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    def make_cache(self, sequences: int, capacity: int) -> Any: ...

    def forward(
        self, ids: Tensor, positions: Tensor, bias: Tensor | None, cache: Any, slots: int | Tensor, length: int
    ) -> Tensor: ...

    def head(self, hidden: Tensor) -> Tensor: ...
