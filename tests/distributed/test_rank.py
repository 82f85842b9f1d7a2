"""A rank that loads says that it gets on, at every weight."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from simsd.distributed.rank import Rank
from simsd.models.loader import look_at
from simsd.models.weights import WeightFiles
from tests.models.checkpoints import random_checkpoint


def test_every_weight_that_is_read_is_told(tmp_path: Path):
    folder, cpu, read = random_checkpoint(tmp_path), torch.device("cpu"), []
    alone: Any = SimpleNamespace(rank=0, size=1, device=cpu)
    checkpoint, _ = look_at(folder, "float32", cpu)
    Rank(alone, lambda: read.append(None)).load(0, checkpoint)
    assert len(read) == len(WeightFiles(folder).shapes)
