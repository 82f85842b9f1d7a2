"""How a device records work, and what a recording cannot hold."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Capture(Protocol):
    """How a device records work."""

    def __call__(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """What repeats the work of `function`, and the result in which each repetition leaves its numbers.

        One at a time in the whole process. Raises: RuntimeError where the work cannot be recorded, or not now; it may
        be called again.
        """
        ...


class CudaCapture:
    """Records on one device. All that it records shares one pool of memory, and is replayed one at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        with torch.cuda.device(self.device):
            here, side, graph = torch.cuda.current_stream(), _side(self.device), torch.cuda.CUDAGraph()
            side.wait_stream(here)
            with torch.cuda.stream(side):
                try:
                    function()  # libraries set themselves up for a stream when it first comes
                finally:
                    here.wait_stream(side)
                result = self._record(graph, function)
        return graph.replay, result

    def _record(self, graph: torch.cuda.CUDAGraph, function: Callable[[], Any]) -> Any:
        """As `torch.cuda.graph` does, but that leaves more behind where it fails, and hides why."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        try:
            graph.capture_begin(self.pool, capture_error_mode="thread_local")  # other threads may use the device
            result = function()
            graph.capture_end()
        except BaseException:
            with suppress(RuntimeError):
                graph.capture_end()
            self._close(graph)
            raise
        return result

    def _close(self, graph: torch.cuda.CUDAGraph) -> None:
        """Takes the pool out of use. A recording that CUDA breaks off leaves it open: PyTorch would open it no second
        time, and would go on asking `graph`, for every piece of memory, whether that belongs there."""
        end = next(getattr(torch._C, name) for name in _END if hasattr(torch._C, name))
        device = torch.cuda.current_device()
        try:
            end(device, self.pool)
        except RuntimeError:  # it is closed, or never was open
            return
        torch._C._cuda_releasePool(device, self.pool)
        _BROKEN_OFF.append(graph)
        self.pool = torch.cuda.graph_pool_handle()


_END = ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")  # the latter before 2.8

# PyTorch's allocator of pinned memory cannot be told, and asks them as long as the process lives.
_BROKEN_OFF: list[torch.cuda.CUDAGraph] = []


@functools.cache
def _side(device: torch.device) -> torch.cuda.Stream:
    """The stream that all recordings of a device are made on: libraries keep a workspace for each."""
    return torch.cuda.Stream(device)


class Watch(TorchDispatchMode):
    """Notes operators that no graph can hold: they look at values, or move numbers between host and device."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = NotImplemented
        if func.namespace != "prim":  # a question about a tensor, not an operator
            with self:  # what is made of other operators hides nothing
                result = func.decompose(*args, **kwargs)
        if result is NotImplemented:
            result = func(*args, **kwargs)
            if refuses(func, args, kwargs, result):
                self.refused.add(str(func))
        return result


_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")
_HOST = ("lift_fresh", "lift_fresh_copy", "resize_", "_resize_output_", "set_")


def refuses(func: Any, args: Any, kwargs: Any, result: Any) -> bool:
    """Whether a recording cannot hold this call of an operator."""
    name = func.overloadpacket.__name__
    used = [one for one in _flat((args, list(kwargs.values()), result)) if isinstance(one, Tensor)]
    if name in _HOST or len({one.device for one in used}) > 1:
        return True
    if name in _INDEXING:  # a mask is turned into positions, as many as there are
        return any(one.dtype in (torch.bool, torch.uint8) for one in _flat(args[1]) if isinstance(one, Tensor))
    if name == "_grouped_mm":
        return not stays_on_device(args[0])
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def stays_on_device(rows: Tensor) -> bool:
    """Whether PyTorch's grouped product of such rows is one kernel, which reads the groups' ends where they are.

    Elsewhere it is a loop over the groups, for which their ends go to the host, unseen by who watches operators.
    """
    if rows.device.type != "cuda" or rows.dtype != torch.bfloat16 or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(rows.device)[0] in (9, 10)


def _flat(value: Any) -> list[Any]:
    return [one for part in value for one in _flat(part)] if isinstance(value, list | tuple) else [value]
