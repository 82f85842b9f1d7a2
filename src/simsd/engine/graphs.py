"""CUDA graphs: the tensor work of a round, recorded once for each of its shapes and replayed from then on.

A forward is hundreds of small kernels, and launching them one by one takes longer than running them. A graph launches
them all at once; no Python runs, so whatever is not a number in a tensor stays as it was at the recording. Here a graph
is therefore found by everything else: by the function and by all of its argument but the tensors' numbers
(`core.tensors.kind`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from simsd.core.tensors import kind, mapped, tensors

MOST = 64  # graphs at once; each takes some megabytes beside the memory that all share
MOST_MET = 1024  # shapes that are remembered although they have no graph yet
AFTER = 2  # a shape is recorded when it comes for this time, never at once: its first call may still make things
STEP = 256  # lengths are rounded up to multiples of this, longer ones to coarser steps
FINER = 4  # steps between a length and its double, from there on

log = logging.getLogger(__name__)


class Capture(Protocol):
    """How a device records work."""

    def __call__(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """What repeats the work of `function`, and the result in which each repetition leaves its numbers."""
        ...


class CudaCapture:
    """Records on one device. All that it records shares one pool of memory, and is replayed one at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)  # one, because libraries keep a workspace for each

    def __call__(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        with torch.cuda.device(self.device):
            side, graph = self.stream, torch.cuda.CUDAGraph()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                function()  # libraries set themselves up for a stream when it first comes
            torch.cuda.current_stream().wait_stream(side)
            # other threads may go on using the device meanwhile
            with torch.cuda.graph(graph, pool=self.pool, stream=side, capture_error_mode="thread_local"):
                result = function()
        return graph.replay, result


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
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def _flat(value: Any) -> list[Any]:
    return [one for part in value for one in _flat(part)] if isinstance(value, list | tuple) else [value]


@dataclass(frozen=True)
class Graph:
    """A recording: tensors that it reads its argument from, what repeats it, and where it leaves the result."""

    given: list[Tensor]
    replay: Callable[[], None]
    result: Any

    def __call__(self, given: list[Tensor]) -> Any:
        """The result is the caller's own: the next replay does not change it."""
        pairs: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
        for mine, new in zip(self.given, given, strict=True):
            if mine.numel():
                pairs[mine.dtype][0].append(mine)
                pairs[mine.dtype][1].append(new)
        for mine, new in pairs.values():
            # one kernel for all of a dtype
            torch._foreach_copy_(mine, new)  # pyright: ignore[reportPrivateImportUsage]
        self.replay()
        return mapped(self.result, Tensor.clone)


class Graphs:
    """Calls functions, as graphs from their third time on.

    A function takes one argument and returns one result, each a tensor or a frozen dataclass of tensors and hashable
    values. It may read what stays where it is (weights, the cache) and write to the cache; run twice, it must come to
    the same. Whatever else happens in it happens at the recording alone. A function that a graph cannot hold is called
    as it is, and a warning says so once. For one thread at a time.
    """

    def __init__(self, capture: Callable[[], Capture], most: int = MOST, after: int = AFTER, step: int = STEP) -> None:
        """capture: makes what records; its recordings are dropped all together. most: graphs that are kept, the ones
        used last. after, step: see AFTER and STEP; `after` is 2 or more."""
        self.make_capture = capture
        self.most = most
        self.after = after
        self.step = step
        self.recorded = 0
        self.replays = 0
        self._unfit: set[Hashable] = set()
        self._told: set[str] = set()
        self.clear()

    def __len__(self) -> int:
        """Graphs that are kept."""
        return len(self._graphs)

    def clear(self) -> None:
        """Drops all graphs: something that they read has moved."""
        self._capture: Capture | None = None
        self._graphs: OrderedDict[Hashable, Graph] = OrderedDict()
        self._met: OrderedDict[Hashable, int] = OrderedDict()
        self._results: dict[Hashable, Tensor] = {}  # as graphs leave them; those of equal shape share theirs

    def fresh(self) -> Graphs:
        """None yet, of the same kind: for another cache."""
        return Graphs(self.make_capture, self.most, self.after, self.step)

    def reach(self, tokens: int) -> int:
        """The length, rounded up, that the graph for so many stored tokens attends to."""
        longest = 1 << (max(tokens, 1) - 1).bit_length()
        step = max(self.step, longest // 2 // FINER)
        return -(-max(tokens, 1) // step) * step

    def __call__(self, function: Callable[[Any], Any], given: Any) -> Any:
        key = (function, kind(given))
        graph = self._graphs.get(key)
        if graph is not None:
            self._graphs.move_to_end(key)
            self.replays += 1
            return graph(tensors(given))
        if key in self._unfit:
            return function(given)
        met = self._met.pop(key, 0) + 1
        if met < self.after:
            result = function(given)  # it makes what is made once, and may `clear`, where the cache has to grow
            self._met[key] = met
            if len(self._met) > MOST_MET:
                self._met.popitem(last=False)
            return result
        with Watch() as watch:
            result = function(given)
        if watch.refused:
            self._give_up(key, function, f"it uses {', '.join(sorted(watch.refused))}")
        else:
            self._record(key, function, given, result)
        return result

    def _record(self, key: Hashable, function: Callable[[Any], Any], given: Any, result: Any) -> None:
        mine = [one.clone(memory_format=torch.contiguous_format) for one in tensors(given)]
        own = iter(mine)
        argument = mapped(given, lambda _: next(own))
        places = [
            self._results.setdefault((at, kind(one)), torch.empty_like(one, memory_format=torch.contiguous_format))
            for at, one in enumerate(tensors(result))
        ]

        def work() -> Any:
            into = iter(places)
            return mapped(function(argument), lambda one: next(into).copy_(one))

        if self._capture is None:
            self._capture = self.make_capture()
        try:
            self._graphs[key] = Graph(mine, *self._capture(work))
            self.recorded += 1
        except RuntimeError as error:
            self._give_up(key, function, str(error).splitlines()[0])
        if len(self._graphs) > self.most:
            self._graphs.popitem(last=False)

    def _give_up(self, key: Hashable, function: Callable[[Any], Any], why: str) -> None:
        self._unfit.add(key)
        if why not in self._told:
            self._told.add(why)
            log.warning("%s runs without a CUDA graph: %s", getattr(function, "func", function).__qualname__, why)


def graphs_for(device: torch.device) -> Graphs | None:
    """Those of a model on this device; None where there are none."""
    return Graphs(partial(CudaCapture, device)) if device.type == "cuda" else None
