"""The tensors inside frozen dataclasses, and small ones on their way to a device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor


def tensors(value: Any) -> list[Tensor]:
    """All tensors of a value: it is one, or a dataclass whose fields have some."""
    if isinstance(value, Tensor):
        return [value]
    if _is_instance(value):
        return [found for f in fields(value) for found in tensors(getattr(value, f.name))]
    return []


def mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same value with `function` of each of its tensors, in the order of `tensors`."""
    if isinstance(value, Tensor):
        return function(value)
    if _is_instance(value):
        return replace(value, **{f.name: mapped(getattr(value, f.name), function) for f in fields(value)})
    return value


def kind(value: Any) -> Hashable:
    """All of a value but its tensors' numbers: their shapes, dtypes and devices, and everything that is no tensor."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype, value.device
    if _is_instance(value):
        return type(value), *(kind(getattr(value, f.name)) for f in fields(value))
    return value


def sent(device: torch.device, *columns: Sequence[int]) -> Sequence[Tensor]:
    """Each column of whole numbers as a tensor `[len]` on the device: one copy for all of them."""
    return put(list(chain(*columns)), torch.long, device).split([len(column) for column in columns])


def put(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers of the host as a tensor on the device. The host does not wait for what the device is doing."""
    here = torch.tensor(values, dtype=dtype)
    if device.type == "cuda":
        here = here.pin_memory()  # a copy from other memory would wait
    return here.to(device, non_blocking=True)


def on_device(table: Tensor, device: torch.device) -> Tensor:
    """A table that the host has made, on the device: copied there once. The same few objects come in every round."""
    return table if table.device == device else _copy(table, device)


@cache  # of the object, whose values never change; for good, because a recorded graph reads the copy where it is
def _copy(table: Tensor, device: torch.device) -> Tensor:
    return table.to(device)


def _is_instance(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)
