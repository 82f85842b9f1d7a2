"""Models of random weights in the shapes of public ones; what they cost does not depend on their weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simsd.models import sdar
from simsd.models.config import ModelConfig
from simsd.models.loader import embedded
from simsd.models.parts import Parts
from simsd.models.transformer import Transformer
from simsd.models.weights import Piece, WeightFiles

# Changes to the embedded target's configuration.
LARGE = {
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "mask_token_id": 151669,
    "max_position_embeddings": 4096,
}
SIZES = {
    "embedded pair's target": {},
    "0.6B (Qwen3-0.6B)": LARGE | {"hidden_size": 1024, "intermediate_size": 3072},
    "1.7B (SDAR-1.7B)": LARGE | {"hidden_size": 2048, "intermediate_size": 6144},
}


class RandomWeights(WeightFiles):
    """Weights of a configuration's shapes, made as they are read."""

    def __init__(self, config: ModelConfig) -> None:
        self.folder = Path("random")
        self.shapes = sdar.weight_shapes(config)[0]
        self._noise = torch.rand(1 << 20, generator=torch.Generator().manual_seed(0)).sub_(0.5).mul_(0.05)

    def stored(self, piece: Piece) -> Tensor:
        shape = torch.Size(piece.shape(self.shapes[piece.name]))
        copies = -(-shape.numel() // self._noise.numel())
        return self._noise.repeat(copies)[: shape.numel()].view(shape)


def built(config: ModelConfig, dtype: torch.dtype) -> Transformer:
    """A model of random weights."""
    return sdar.build(config, Parts(RandomWeights(config), dtype, torch.device("cpu"), config.rms_norm_eps))


def configured(changes: dict[str, Any]) -> ModelConfig:
    config = ModelConfig.from_folder(embedded("tiny"))
    return replace(config, **changes) if changes else config
