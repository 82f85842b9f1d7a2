"""Which model types can be loaded, by whom, and what their checkpoints leave unsaid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from simsd.errors import ModelError
from simsd.models import llada2, sdar
from simsd.models.config import ModelConfig
from simsd.models.parts import Parts, Shapes
from simsd.models.transformer import Transformer

Builder = Callable[[ModelConfig, Parts], Transformer]


@dataclass(frozen=True)
class Family:
    """How to build one model type, and what holds where its checkpoints are silent (method section 1).

    weight_shapes: the weights a checkpoint must hold, and those it may hold.
    stop_token_ids: only for a checkpoint that names no stop id at all.
    """

    build: Builder
    weight_shapes: Callable[[ModelConfig], tuple[Shapes, Shapes]]
    block_length: int
    mask_token_id: int
    stop_token_ids: tuple[int, ...] = ()


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "sdar": Family(sdar.build, sdar.weight_shapes, block_length=4, mask_token_id=151669),
        "sdar_moe": Family(sdar.build, sdar.weight_shapes, block_length=4, mask_token_id=151669),
        "llada2_moe": Family(
            llada2.build, llada2.weight_shapes, block_length=32, mask_token_id=156895, stop_token_ids=(156892,)
        ),
    }
)


def family(model_type: str) -> Family:
    """The family of a model type.

    Raises:
        ModelError: the type is not supported; the message lists those that are.
    """
    if model_type not in FAMILIES:
        raise ModelError(f"model_type {model_type!r} is not supported; supported: {', '.join(sorted(FAMILIES))}.")
    return FAMILIES[model_type]


def with_defaults(config: ModelConfig) -> ModelConfig:
    """The configuration with block length, MASK id and stop ids filled in where the checkpoint does not state them.

    A block length in the checkpoint's name (`-b8`) goes before the family's default.
    """
    defaults = family(config.model_type)
    hinted = config.trained_block_lengths[0] if config.trained_block_lengths else defaults.block_length
    return replace(
        config,
        block_length=hinted if config.block_length is None else config.block_length,
        mask_token_id=defaults.mask_token_id if config.mask_token_id is None else config.mask_token_id,
        stop_token_ids=config.stop_token_ids or defaults.stop_token_ids,
    )
