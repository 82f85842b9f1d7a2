"""What one rank holds and does: its part of each model, its part of each cache. All ranks run the same calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from simsd.distributed.call import Call, pack
from simsd.distributed.group import Group
from simsd.models.cache import KVCache
from simsd.models.loader import Checkpoint
from simsd.models.shard import Shard
from simsd.models.transformer import Transformer


class Rank:
    """Models and caches by number, as rank 0 counts them. on_read: called whenever a weight has been read."""

    def __init__(self, group: Group, on_read: Callable[[], None] = lambda: None) -> None:
        self.group = group
        self._on_read = on_read
        self.models: dict[int, Transformer] = {}
        self.caches: dict[int, KVCache] = {}

    def run(self, call: Call, arguments: tuple[Any, ...] | None = None) -> Any:
        """Runs the method that `call` names. arguments: rank 0 has them; to the others their tensors come from it."""
        if call.specs:
            if arguments is None:
                buffer = torch.empty(call.nbytes, dtype=torch.uint8, device=self.group.device)
                arguments = call.filled(self.group.share(buffer))
            else:
                self.group.share(pack(arguments))
        return getattr(self, call.name)(*(call.arguments if arguments is None else arguments))

    def load(self, model: int, checkpoint: Checkpoint) -> None:
        """Reads this rank's part of a checkpoint. Raises: ModelError."""
        shard = Shard(self.group.rank, self.group.size, self.group)
        self.models[model] = checkpoint.build(self.group.device, shard, self._on_read)

    def make_cache(self, model: int, cache: int, sequences: int, capacity: int) -> None:
        self.caches[cache] = self.models[model].make_cache(sequences, capacity)

    def change_cache(self, cache: int, method: str, *arguments: int) -> None:
        """Calls a method of a cache, such as `swap`."""
        getattr(self.caches[cache], method)(*arguments)

    def drop_cache(self, cache: int) -> None:
        self.caches.pop(cache, None)

    def forward(
        self,
        model: int,
        cache: int,
        start: int,
        count: int,
        ids: Tensor,
        positions: Tensor,
        seen: Tensor | None,
        slots: int | Tensor,
        length: int,
    ) -> Tensor:
        """As `Transformer.forward`, on `count` sequences of a cache from `start` on.

        seen: `[N, 1, R, length]`, true where a row may see a slot; the additive mask is up to eight times as large.
        """
        own = self.models[model]
        bias = None
        if seen is not None:
            bias = torch.zeros(seen.shape, dtype=own.dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
        return own.forward(ids, positions, bias, self.caches[cache].slice(start, count), slots, length)

    def head(self, model: int, hidden: Tensor) -> Tensor:
        """As `Transformer.head`; only rank 0's result has the whole vocabulary."""
        logits = self.models[model].head(hidden)
        self.group.settle()
        return logits
