"""A CUDA graph without CUDA: the operators of one run are written down, and the same calls are made again and again.

As of a graph, no Python runs at a replay: shapes, host numbers and the places of tensors are those of the recording.
What a recording cannot hold is refused by rules of its own, not by those of the code under test. Unlike CUDA's, this
recording has to compute; so what it has made is spoilt afterwards, for nobody to use it before the first replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from simsd.engine.graphs import Graphs

# They read values, make tensors of host numbers, or as many elements as the values say.
REFUSED = """_local_scalar_dense item is_nonzero equal allclose lift_fresh lift_fresh_copy nonzero nonzero_static
masked_select unique_dim _unique2 unique_consecutive bincount histc resize_ set_ argwhere where.default
repeat_interleave.Tensor""".split()
READING = ("tolist", "numpy", "__array__", "item", "__bool__", "__int__", "__float__", "__index__")


class RefusedError(RuntimeError):
    """What a capture would raise."""


class Recording(TorchDispatchMode):
    """The calls of one run."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []
        self.made: dict[int, Tensor] = {}  # by the storage, which is kept: its number stays its own
        self.read: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet, overload = func.overloadpacket.__name__, func._overloadname
        if packet in REFUSED or f"{packet}.{overload}" in REFUSED:
            raise RefusedError(f"{func} cannot be recorded")
        with self:  # into operators that hide nothing
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        if packet.startswith(("index", "_index")) and any(one.dtype == torch.bool for one in _indices(args)):
            raise RefusedError(f"{func} by a mask cannot be recorded")
        result = func(*args, **kwargs)
        given = {_place(one): one for one in tree_flatten((args, kwargs))[0] if isinstance(one, Tensor)}
        self.read |= {place: one for place, one in given.items() if place not in self.made}
        results = [(at, one) for at, one in enumerate(tree_flatten(result)[0]) if isinstance(one, Tensor)]
        new = [(at, one) for at, one in results if _place(one) not in given]  # no view, and not written in place
        self.made |= {_place(one): one for _, one in new}
        self.calls.append((func, args, kwargs, new))
        return result

    def replay(self) -> None:
        for func, args, kwargs, results in self.calls:
            again = func(*args, **kwargs)
            if isinstance(again, Tensor):
                again = (again,)
            for at, old in results:
                assert (old.shape, old.dtype) == (again[at].shape, again[at].dtype)
                old.copy_(again[at])

    def spoil(self) -> None:
        for one in self.made.values():
            whole = torch.empty(0, dtype=torch.uint8).set_(one.untyped_storage())
            whole.fill_(0xFE)


def _indices(args: Any) -> list[Tensor]:
    return [one for one in tree_flatten(args[1])[0] if isinstance(one, Tensor)] if len(args) > 1 else []


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class StandIn:
    """Records as `engine.capture.CudaCapture` does."""

    def __call__(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        with nobody_reads(), Recording() as recording:
            result = function()
        recording.spoil()
        return recording.replay, result


@contextmanager
def nobody_reads() -> Iterator[None]:
    """Refuses the ways to a tensor's numbers, those that go by no operator too."""

    def refuse(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        raise RefusedError("a tensor's numbers are read on the host")

    own = {name: vars(Tensor).get(name) for name in READING}
    for name in READING:
        setattr(Tensor, name, refuse)
    try:
        yield
    finally:
        for name, method in own.items():
            if method is None:
                delattr(Tensor, name)  # it is the base's again
            else:
                setattr(Tensor, name, method)


def graphs(**given: Any) -> Graphs:
    """Lengths go by few tokens, so that tests cross them."""
    return Graphs(StandIn, **({"step": 16} | given))
