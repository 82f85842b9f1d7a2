"""Tensor parallelism as a model sees it: which part of every weight is a rank's own, and how the parts' results meet.

The split is Megatron's: a first projection is split by its outputs (heads, inner dimensions), the second one by the
same inputs, and what the ranks get is added up, once for attention and once for the MLP. Experts are split by number.
Embedding and head are split by tokens. Norms and routers are small, and every rank has them whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from simsd.errors import ConfigError
from simsd.models.config import ModelConfig


class Ranks(Protocol):
    """What the ranks do together; all of them call it at the same place, with tensors of the same shape."""

    def sum(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x, on every rank."""
        ...

    def gather(self, x: Tensor) -> list[Tensor] | None:
        """Every rank's x on rank 0; None on the others."""
        ...


class Alone:
    """The one rank of a model that is not split."""

    def sum(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x: Tensor) -> list[Tensor] | None:
        return [x]


ALONE = Alone()


@dataclass(frozen=True)
class Shard:
    """The part of rank `rank` of `size`."""

    rank: int = 0
    size: int = 1
    ranks: Ranks = ALONE

    def span(self, total: int) -> slice:
        """This rank's part of `total` things in a row; parts differ by one at most, the first ranks have more."""
        each, more = divmod(total, self.size)
        start = self.rank * each + min(self.rank, more)
        return slice(start, start + each + (self.rank < more))

    def heads(self, config: ModelConfig) -> slice:
        """This rank's query heads."""
        return self.span(config.num_attention_heads)

    def kv_heads(self, config: ModelConfig) -> slice:
        """The key/value heads of its query heads. Where there are more ranks than these heads, some share one."""
        heads, groups = self.heads(config), config.groups
        return slice(heads.start // groups, -(-heads.stop // groups))

    def config(self, config: ModelConfig) -> ModelConfig:
        """The configuration with this rank's heads alone: what its layers and its cache are made of."""
        heads, kv_heads = self.heads(config), self.kv_heads(config)
        return replace(config, num_attention_heads=count(heads), num_key_value_heads=count(kv_heads))

    def summed(self, share: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The whole of a part of which every rank computes a share."""
        return share if self.size == 1 else Summed(share, self.ranks)


WHOLE = Shard()


class Summed:
    """A part of the model of which every rank computes a share: the shares are added up."""

    def __init__(self, share: Callable[..., Tensor], ranks: Ranks) -> None:
        self.share = share
        self.ranks = ranks

    def __call__(self, *given: Any) -> Tensor:
        return self.ranks.sum(self.share(*given))


def count(span: slice) -> int:
    return span.stop - span.start


def scaled(span: slice, size: int) -> slice:
    """The span of the elements of these things, `size` each."""
    return slice(span.start * size, span.stop * size)


def check_split(config: ModelConfig, size: int, name: str) -> None:
    """Makes sure that a model can be split among `size` ranks; any is whole on one.

    Heads must fall evenly: the same number of query heads to every rank, and key/value heads that are a multiple of
    the ranks, or a divisor of them. All else may be uneven, as long as every rank gets something.

    Raises:
        ConfigError: it cannot; the message gives the number that stands in the way.
    """
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % size or (kv_heads % size and size % kv_heads):
        fitting = [n for n in range(1, heads + 1) if heads % n == 0 and (kv_heads % n == 0 or n % kv_heads == 0)]
        raise ConfigError(
            f"tensor_parallel_size is {size}, but the {heads} attention heads and {kv_heads} key/value heads of {name} "
            f"cannot be split evenly among so many; choose one of {', '.join(map(str, fitting))}"
        )
    fewest = min(config.vocab_size, config.intermediate_size, *_experts(config))
    if fewest < size:
        raise ConfigError(
            f"tensor_parallel_size is {size}, but {name} has parts of only {fewest}; choose {fewest} at most"
        )


def _experts(config: ModelConfig) -> list[int]:
    moe = config.moe
    return [] if moe is None else [moe.num_experts, moe.moe_intermediate_size]
