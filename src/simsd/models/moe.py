"""Mixture of experts: a router names a few experts for each row, and the rows of one expert are multiplied together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from simsd.models.linear import Linear
from simsd.models.mlp import gated
from simsd.models.operators import works
from simsd.models.quantized import Int8Linear
from simsd.native.library import Kernels

Layers = Sequence[Int8Linear]


@dataclass(frozen=True)
class PackedStack:
    """E weights `[out, in]`, each packed for our own kernels: `[E, numbers]`."""

    weight: Tensor
    outputs: int
    own: Kernels

    @classmethod
    def of(cls, weights: Iterable[Tensor], count: int, own: Kernels) -> PackedStack:
        """Of so many weights of one shape; they are not held together."""
        found: PackedStack | None = None
        for index, weight in enumerate(weights):
            if found is None:
                outputs, inputs = weight.shape
                numbers = own.packed_size(outputs, inputs, weight.dtype)
                found = cls(weight.new_empty(count, numbers), outputs, own)
            own.pack(weight, found.weight[index])
        assert found is not None
        return found

    def __len__(self) -> int:
        return len(self.weight)


Stack = Tensor | PackedStack | Layers


@dataclass(frozen=True)
class Router:
    """Which experts each row goes to, and how much each of them counts.

    logits: of `[E, H]`, in the dtype the scores are computed in: float32, or float64 for a float64 model.
    top_k: experts a row.
    score: "softmax" over all experts (SDAR-MoE), or "sigmoid" of each (LLaDA2).
    renormalise: the weights of a row's experts sum to one (before `scale`).
    bias: `[E]` or None, added to the scores only while experts are chosen: it balances their load.
    groups, kept_groups: experts form that many groups of equal size; only those of the best `kept_groups` may be
        chosen. A group is as good as its two best experts together.
    scale: every weight is multiplied by it.
    """

    logits: Linear
    top_k: int
    score: str = "softmax"
    renormalise: bool = True
    bias: Tensor | None = None
    groups: int = 1
    kept_groups: int = 1
    scale: float = 1.0

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x `[M, H]` -> the experts of each row `[M, k]` (ids), and their weights `[M, k]`."""
        logits = self.logits(x.to(self.logits.dtype))
        scores = logits.softmax(-1) if self.score == "softmax" else _sigmoid(logits)
        wanted = scores if self.bias is None else scores + self.bias
        if self.kept_groups < self.groups:
            wanted = self._within_groups(wanted)
        chosen = wanted.topk(self.top_k, -1).indices
        weights = scores.gather(-1, chosen)
        if self.renormalise:
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
        return chosen, weights * self.scale

    def _within_groups(self, wanted: Tensor) -> Tensor:
        grouped = wanted.unflatten(-1, (self.groups, -1))  # [M, G, E/G]
        merit = grouped.topk(min(2, grouped.shape[-1]), -1).values.sum(-1)
        kept = torch.zeros_like(merit, dtype=torch.bool).scatter_(-1, merit.topk(self.kept_groups, -1).indices, True)
        return grouped.masked_fill(~kept[..., None], -torch.inf).flatten(-2)


class Experts:
    """E SwiGLU networks as two stacks of weights.

    Rows are sorted by expert, and each stack is one grouped product: weights of experts that no row chose are not
    read. On a CPU it is our own, of packed weights; elsewhere PyTorch's, which waits for nothing on an accelerator;
    where neither can be had (float64, older versions), groups are filled up to the length of the longest. Quantised
    experts are layers of their own, and run one after the other.
    """

    def __init__(self, gate_up: Stack, down: Stack, first: int = 0, *, partial: bool = False) -> None:
        """gate_up: `[E, 2*I, H]`, the gate first. down: `[E, H, I]`. Or of each E packed weights, or layers.

        partial: these are only the experts `first` .. `first + E - 1` of the router's; the others add nothing here.
        """
        self.gate_up = gate_up
        self.down = down
        self.first = first
        self.partial = partial
        self.product = _product(gate_up, down)
        self.gated = gate_up.own.gate if isinstance(gate_up, PackedStack) else gated

    def __call__(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """x `[M, H]`, chosen and weights `[M, k]` -> the weighted sum of each row's experts `[M, H]`, in x's dtype."""
        top_k, count = chosen.shape[1], len(self.down)
        own = chosen.flatten() - self.first
        if self.partial:
            own = torch.where((own >= 0) & (own < count), own, count)  # rows of other experts come last
        expert, order = own.sort(stable=True)
        ids = torch.arange(count, device=x.device)
        ends = torch.searchsorted(expert, ids, right=True)  # where the rows of each expert end
        inner = self.product(x[order // top_k], self.gate_up, expert, ends)
        sorted_rows = self.product(self.gated(inner), self.down, expert, ends)
        if self.partial:  # behind the last end the products are whatever the memory held
            sorted_rows = sorted_rows.masked_fill((expert == count)[:, None], 0)
        rows = torch.empty_like(sorted_rows).index_copy_(0, order, sorted_rows).view(*chosen.shape, -1)
        return (rows * weights[..., None]).sum(1).to(x.dtype)


class MixtureOfExperts:
    """The experts that the router chooses and, where there is one, the expert that all rows share. `[M, H]` -> same."""

    def __init__(self, router: Router, experts: Experts, shared: Callable[[Tensor], Tensor] | None = None) -> None:
        self.router = router
        self.experts = experts
        self.shared = shared

    def __call__(self, x: Tensor) -> Tensor:
        y = self.experts(x, *self.router(x))
        return y if self.shared is None else y + self.shared(x)


def _sigmoid(logits: Tensor) -> Tensor:
    """By way of float64: PyTorch's own, in float32, ends its last few numbers by another formula than the others, so
    that a row would depend on the rows beside it."""
    return logits.double().sigmoid().to(logits.dtype)


def _product(gate_up: Stack, down: Stack) -> Callable[..., Tensor]:
    if isinstance(gate_up, PackedStack):
        return _packed
    if not isinstance(gate_up, Tensor) or not isinstance(down, Tensor):
        return _one_by_one
    return _grouped if _grouped_works(gate_up) and _grouped_works(down) else _filled_up


def _one_by_one(rows: Tensor, layers: Layers, expert: Tensor, ends: Tensor) -> Tensor:
    out = rows.new_zeros(rows.shape[0], layers[0].out_features)
    for layer, (begin, end) in zip(layers, pairwise([0, *ends.tolist()]), strict=True):
        if end > begin:
            out[begin:end] = layer(rows[begin:end])
    return out


def _packed(rows: Tensor, stack: PackedStack, expert: Tensor, ends: Tensor) -> Tensor:
    return stack.own.grouped(rows, stack.weight, ends, stack.outputs)


def _grouped(rows: Tensor, weight: Tensor, expert: Tensor, ends: Tensor) -> Tensor:
    return F.grouped_mm(rows, weight.mT, offs=ends.to(torch.int32))


def _filled_up(rows: Tensor, weight: Tensor, expert: Tensor, ends: Tensor) -> Tensor:
    out = rows.new_zeros(rows.shape[0], weight.shape[1])
    used = int(ends[-1])
    expert, rows = expert[:used], rows[:used]
    starts = ends - torch.bincount(expert, minlength=weight.shape[0])
    place = torch.arange(used, device=expert.device) - starts[expert]
    batch = rows.new_zeros(weight.shape[0], int(place.max()) + 1 if used else 0, rows.shape[1])
    batch[expert, place] = rows
    out[:used] = torch.bmm(batch, weight.mT)[expert, place]
    return out


def _grouped_works(weight: Tensor) -> bool:
    """Whether PyTorch's grouped product takes this stack, on its device and in its dtype: it has come by and by."""
    ends = torch.ones(weight.shape[0], dtype=torch.long, device=weight.device)
    rows = weight.new_zeros(1, weight.shape[2])
    return works(lambda: bool((_grouped(rows, weight, ends[:1] - 1, ends) == 0).all()))


def router_dtype(dtype: torch.dtype) -> torch.dtype:
    """Scores are computed in float32 at least: in bfloat16 two experts would often look alike."""
    return torch.float64 if dtype == torch.float64 else torch.float32
