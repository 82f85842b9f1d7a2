"""A target and its draft model, from whatever the user names them by: a folder, a hub name, a loaded module."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from simsd.errors import ConfigError, ModelError
from simsd.models.loader import Load, LoadedModel, check_pair
from simsd.models.loader import load as load_whole
from simsd.models.protocol import Model

Source = str | Path | torch.nn.Module | LoadedModel[Model]


def open_pair(
    model: Source | None,
    draft_model: Source | None,
    *,
    dtype: str = "auto",
    device: str = "auto",
    block_length: int | None = None,
    mask_token_id: int | None = None,
    tokenizer: Any = None,
    shifted_logits: bool = False,
    load: Load = load_whole,
) -> tuple[LoadedModel[Model], LoadedModel[Model] | None]:
    """The target and, if one is named, its draft model; None is the embedded target, with its draft model.

    dtype and device are for checkpoints, tokenizer and shifted_logits for modules. The draft model takes MASK id, block
    length and, if it came without one, tokenizer from the target. load: how checkpoints are loaded.

    Raises: ModelError, PairError, ConfigError.
    """
    if model is None or (isinstance(model, str) and model == "tiny"):
        model, draft_model = "tiny", "tiny-draft" if draft_model is None else draft_model
    loads = [source for source in (model, draft_model) if source is not None]
    modules = [source for source in loads if isinstance(source, torch.nn.Module)]
    if not modules and (tokenizer is not None or shifted_logits is not False):
        name = "shifted_logits" if tokenizer is None else "tokenizer"
        raise ConfigError(f"{name} is for a loaded module, but a checkpoint was named; leave it out")
    if (dtype, device) != ("auto", "auto") and not any(isinstance(source, str | Path) for source in loads):
        raise ConfigError(f"dtype {dtype!r} and device {device!r} are for checkpoints; move the module itself instead")

    def opened(source: Source, block_length: int | None, mask_token_id: int | None, text: Any) -> LoadedModel[Model]:
        if isinstance(source, LoadedModel):
            config = source.config.override(mask_token_id=mask_token_id, block_length=block_length)
            return replace(source, config=config)
        if isinstance(source, torch.nn.Module):
            from simsd.models.huggingface import wrap  # it imports transformers

            sizes: dict[str, Any] = {"mask_token_id": mask_token_id, "block_length": block_length}
            return wrap(source, text, shifted_logits=shifted_logits, **sizes)
        return load(source, dtype, device, mask_token_id, block_length)

    target = opened(model, block_length, mask_token_id, tokenizer)
    if draft_model is None:
        return target, None
    text = tokenizer if tokenizer is not None else target.tokenizer
    draft = opened(draft_model, target.config.block_length, mask_token_id, text)
    if draft.model.device != target.model.device:
        raise ModelError(f"{target.name} is on {target.model.device}, its draft model on {draft.model.device}.")
    check_pair(target, draft)
    return target, draft
