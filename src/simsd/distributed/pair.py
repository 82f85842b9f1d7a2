"""A target and its draft model, both split among the same ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simsd.distributed.model import ParallelModel
from simsd.distributed.workers import Workers
from simsd.models.loader import LoadedModel, look_at, pick_device, rank_devices
from simsd.models.pair import Source, open_pair
from simsd.models.protocol import Model


class ParallelLoader:
    """Loads checkpoints on `size` ranks, among which they can be split. The first one starts the workers."""

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
        int8: bool,
    ) -> LoadedModel[ParallelModel]:
        """As `models.loader.load`. Raises: ModelError, ConfigError, WorkerError."""
        devices = rank_devices(pick_device(device), self.size)
        checkpoint, tokenizer = look_at(model, dtype, devices[0], mask_token_id, block_length, int8)
        if self.workers is None:
            self.workers = Workers(devices)
        number = self.workers.load(checkpoint)
        split = ParallelModel(self.workers, number)
        return LoadedModel(split, checkpoint.config, tokenizer, str(model), checkpoint.fingerprint)

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
    loader = ParallelLoader(size)
    try:
        pair = open_pair(model, draft_model, load=loader, tensor_parallel_size=size, **options)
        return *pair, loader.workers
    except BaseException:
        loader.close()
        raise
