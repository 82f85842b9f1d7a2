"""Bytes of the tensors that an object holds, each storage once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def weigh(held: Any) -> int:
    """Bytes of all tensors in `held`, its attributes, theirs and so on; of packed ones, what oneDNN takes."""
    sizes: dict[int, int] = {}
    for tensor in tensors(held, set()):
        if tensor.is_mkldnn:
            sizes[id(tensor)] = torch.ops.mkldnn._nbytes(tensor)
        else:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def tensors(held: Any, seen: set[int]) -> Iterator[Tensor]:
    if id(held) in seen:
        return
    seen.add(id(held))
    if isinstance(held, Tensor):
        yield held
    elif isinstance(held, list | tuple):
        for one in held:
            yield from tensors(one, seen)
    elif hasattr(held, "__dict__") and not isinstance(held, type):
        for one in list(vars(held).values()):
            yield from tensors(one, seen)
