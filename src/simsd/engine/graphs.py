"""CUDA graphs: the tensor work of a round, recorded once for each of its shapes and replayed from then on.

A forward is hundreds of small kernels, and launching them one by one takes longer than running them. A graph launches
them all at once; no Python runs, so whatever is not a number in a tensor stays as it was at the recording. Here a graph
is therefore found by everything else: by the function and by all of its argument but the tensors' numbers
(`core.tensors.kind`).
"""

from __future__ import annotations

import logging
import math
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from simsd.core.tensors import kind, mapped, tensors
from simsd.engine.capture import Capture, CudaCapture, Watch

MOST = 64  # graphs at once; each takes some megabytes beside the memory that all share
MOST_MET = 1024  # shapes that are remembered although they have no graph yet
AFTER = 2  # a shape is recorded when it comes for this time, never at once: its first call may still make things
AGAIN = 8  # a recording that fails is tried again when its shape has come so many times as often
STEP = 256  # lengths are rounded up to multiples of this, longer ones to coarser steps
ALIGNED = 512  # bytes, as PyTorch's allocator does: kernels are chosen by it, too
FINER = 4  # steps between a length and its double, from there on

log = logging.getLogger(__name__)


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


class Memory:
    """Tensors that stay where they are, for recordings that are never repeated at the same time: all lie in the same
    place. Where that is too small another one is begun, twice as large or more; the old one lives as long as the
    recordings that lie in it."""

    def __init__(self) -> None:
        self._places: dict[torch.device, Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the newest place, on all devices."""
        return sum(place.nbytes for place in self._places.values())

    @torch.inference_mode(False)  # such tensors may be written in every mode
    def like(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Contiguous tensors of these shapes, dtypes and devices; of one call, none overlaps another."""
        used: dict[torch.device, int] = defaultdict(int)
        begins = []
        for one in given:
            begins.append(used[one.device])
            used[one.device] += -(-one.nbytes // ALIGNED) * ALIGNED
        for device, size in used.items():
            if device not in self._places or self._places[device].nbytes < size:
                room = 1 << (max(size, ALIGNED) - 1).bit_length()
                self._places[device] = torch.empty(room, dtype=torch.uint8, device=device)
        return [
            self._places[one.device][begin : begin + one.nbytes].view(one.dtype).view(one.shape)
            for one, begin in zip(given, begins, strict=True)
        ]


@dataclass
class Met:
    """A shape without a graph: how often it has come, and at which time it is to be recorded."""

    times: int
    due: float


# PyTorch allows one recording at a time in a process; and one begins by waiting for the whole device, which would break
# another one off.
ONE_AT_A_TIME = threading.Lock()


class Graphs:
    """Calls functions, as graphs from their third time on.

    A function takes one argument and returns one result, each a tensor or a frozen dataclass of tensors and hashable
    values. It may read what stays where it is (weights, the cache) and write to the cache; run twice, it must come to
    the same. Whatever else happens in it happens at the recording alone. A function that a graph cannot hold is called
    as it is, and a warning says so once. Under `torch.autocast` all are: what it casts is kept for as long as it lasts.
    For one thread at a time.
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
        self._told: set[str] = set()
        self.clear()

    def __len__(self) -> int:
        """Graphs that are kept."""
        return len(self._graphs)

    def clear(self) -> None:
        """Drops all graphs: something that they read has moved."""
        self._capture: Capture | None = None
        self._graphs: OrderedDict[Hashable, Graph] = OrderedDict()
        self._met: OrderedDict[Hashable, Met] = OrderedDict()
        self._given, self._results = Memory(), Memory()

    def fresh(self) -> Graphs:
        """None yet, of the same kind: for another cache."""
        return Graphs(self.make_capture, self.most, self.after, self.step)

    @property
    def nbytes(self) -> int:
        """Bytes in which graphs take their arguments and leave their results."""
        return self._given.nbytes + self._results.nbytes

    def reach(self, tokens: int) -> int:
        """The length, rounded up, that the graph for so many stored tokens attends to."""
        longest = 1 << (max(tokens, 1) - 1).bit_length()
        step = max(self.step, longest // 2 // FINER)
        return -(-max(tokens, 1) // step) * step

    def __call__(self, function: Callable[[Any], Any], given: Any) -> Any:
        if any(map(torch.is_autocast_enabled, ("cuda", "cpu"))):
            return function(given)
        key = (function, kind(given), _precision())
        graph = self._graphs.get(key)
        if graph is not None:
            self._graphs.move_to_end(key)
            self.replays += 1
            return graph(tensors(given))
        met = self._met.pop(key, None) or Met(0, self.after)
        met.times += 1
        if met.times < met.due:
            result = function(given)  # it makes what is made once, and may `clear`, where the cache has to grow
        else:
            with Watch() as watch:
                result = function(given)
            if watch.refused:
                met.due = math.inf
                self._tell(function, f"it uses {', '.join(sorted(watch.refused))}")
            elif self._record(key, function, given, result):
                return result
            else:
                met.due = met.times * AGAIN
        self._met[key] = met
        if len(self._met) > MOST_MET:
            self._met.popitem(last=False)
        return result

    def _record(self, key: Hashable, function: Callable[[Any], Any], given: Any, result: Any) -> bool:
        """Whether it could be done: memory may be short, or another thread have made the whole device wait."""
        try:
            mine, places = self._given.like(tensors(given)), self._results.like(tensors(result))
            for own, one in zip(mine, tensors(given), strict=True):
                own.copy_(one)
            from_here = iter(mine)
            argument = mapped(given, lambda _: next(from_here))

            def work() -> Any:
                into = iter(places)
                return mapped(function(argument), lambda one: next(into).copy_(one))

            with ONE_AT_A_TIME:
                if self._capture is None:
                    self._capture = self.make_capture()
                self._graphs[key] = Graph(mine, *self._capture(work))
        except RuntimeError as error:
            self._tell(function, f"{str(error).splitlines()[0]} (it is tried again later)")
            return False
        self.recorded += 1
        if len(self._graphs) > self.most:
            self._graphs.popitem(last=False)
        return True

    def _tell(self, function: Callable[[Any], Any], why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            log.warning("%s runs without a CUDA graph: %s", getattr(function, "func", function).__qualname__, why)


def _precision() -> Hashable:
    """What is set for the whole process and decides by which kernel a product is computed."""
    products = torch.backends.cuda.matmul
    return products.fp32_precision if hasattr(products, "fp32_precision") else products.allow_tf32  # before 2.9


def graphs_for(device: torch.device) -> Graphs | None:
    """Those of a model on this device; None where there are none."""
    return Graphs(partial(CudaCapture, device)) if device.type == "cuda" else None
