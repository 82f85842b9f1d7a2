"""A target and its draft model, both split among the same ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from simsd.distributed.group import check_devices
from simsd.distributed.model import ParallelModel
from simsd.distributed.workers import Workers
from simsd.errors import ConfigError
from simsd.models.loader import LoadedModel, look_at, pick_device
from simsd.models.pair import Source, open_pair
from simsd.models.protocol import Model
from simsd.models.shard import check_split


class ParallelLoader:
    """Loads checkpoints on `size` ranks. The workers are started for the first one that is found to be in order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.workers: Workers | None = None

    def __call__(
        self,
        model: str | Path,
        dtype: str,
        device: str,
        mask_token_id: int | None,
        block_length: int | None,
    ) -> LoadedModel[ParallelModel]:
        """As `models.loader.load`. Raises: ModelError, ConfigError, WorkerError."""
        where = pick_device(device)
        check_devices(self.size, where)
        checkpoint, tokenizer = look_at(model, dtype, where, mask_token_id, block_length)
        check_split(checkpoint.config, self.size, str(model))
        if self.workers is None:
            self.workers = Workers(self.size, where)
        number = self.workers.load(checkpoint)
        return LoadedModel(ParallelModel(self.workers, number), checkpoint.config, tokenizer, str(model))

    def close(self) -> None:
        if self.workers is not None:
            self.workers.close()


def open_on_ranks(
    size: int, model: Source | None, draft_model: Source | None, **options: Any
) -> tuple[LoadedModel[Model], LoadedModel[Model] | None, Workers | None]:
    """The target and its draft model on `size` ranks, and the workers that both live on: None for one rank.

    options: those of `open_pair`.
    Raises: ModelError, PairError, WorkerError; ConfigError, also for a loaded module that is to be split.
    """
    if size == 1:
        return *open_pair(model, draft_model, **options), None
    for source in (model, draft_model):
        if isinstance(source, torch.nn.Module | LoadedModel):
            raise ConfigError(
                f"tensor_parallel_size is {size}, but {type(source).__name__} is loaded as a whole; "
                "give its folder or its hub name"
            )
    loader = ParallelLoader(size)
    try:
        return *open_pair(model, draft_model, load=loader, **options), loader.workers
    except BaseException:
        loader.close()
        raise
