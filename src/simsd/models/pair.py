"""A target and its draft model, from whatever the user names them by: a folder, a hub name, a loaded module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from simsd.errors import ConfigError
from simsd.models.fit import check_fits
from simsd.models.loader import Load, LoadedModel, check_configs, check_pair
from simsd.models.loader import load as load_whole
from simsd.models.memory import Placed, place
from simsd.models.protocol import Model

QUANTIZE = ("none", "int8-draft", "int8")  # nothing, the draft model, both models
Source = str | Path | torch.nn.Module | LoadedModel[Model]


def open_pair(
    model: Source | None,
    draft_model: Source | None,
    *,
    dtype: str = "auto",
    device: str = "auto",
    draft_device: str | None = None,
    quantize: str = "none",
    tensor_parallel_size: int = 1,
    max_model_len: int | None = None,
    block_length: int | None = None,
    mask_token_id: int | None = None,
    tokenizer: Any = None,
    shifted_logits: bool = False,
    load: Load = load_whole,
    check_memory: bool = True,
) -> tuple[LoadedModel[Model], LoadedModel[Model] | None]:
    """The target and, if one is named, its draft model; None is the embedded target, with its draft model.

    dtype, device and quantize (one of QUANTIZE) are for checkpoints, tokenizer and shifted_logits for modules.
    draft_device: where the draft model is loaded, if not on `device`. It takes MASK id, block length and, if it came
    without one, tokenizer from the target. Checkpoints that cannot be held together with one sequence of max_model_len
    tokens are refused before anything is loaded, unless check_memory is False. load: how checkpoints are loaded, on
    tensor_parallel_size ranks.

    Raises: ModelError, PairError, ConfigError.
    """
    model, draft_model = _with_embedded(model, draft_model)
    loads = [source for source in (model, draft_model) if source is not None]
    modules = [source for source in loads if isinstance(source, torch.nn.Module)]
    if not modules and (tokenizer is not None or shifted_logits is not False):
        name = "shifted_logits" if tokenizer is None else "tokenizer"
        raise ConfigError(f"{name} is for a loaded module, but a checkpoint was named; leave it out")
    if (dtype, device) != ("auto", "auto") and not any(isinstance(source, str | Path) for source in loads):
        raise ConfigError(f"dtype {dtype!r} and device {device!r} are for checkpoints; move the module itself instead")
    placing: dict[str, Any] = {"dtype": dtype, "device": device, "draft_device": draft_device, "quantize": quantize}
    own: dict[str, Any] = {"mask_token_id": mask_token_id, "block_length": block_length}
    placed = placements(model, draft_model, tensor_parallel_size=tensor_parallel_size, **placing, **own)
    if check_memory:
        check_fits(placed, tokens=max_model_len)
    target_at, draft_at = _settings(**placing)

    def opened(
        source: Source, at: Mapping[str, Any], block_length: int | None, mask_token_id: int | None, text: Any
    ) -> LoadedModel[Model]:
        sizes: dict[str, Any] = {"mask_token_id": mask_token_id, "block_length": block_length}
        if isinstance(source, LoadedModel):
            return replace(source, config=source.config.override(**sizes))
        if isinstance(source, torch.nn.Module):
            from simsd.models.huggingface import wrap  # it imports transformers

            return wrap(source, text, shifted_logits=shifted_logits, **sizes)
        return load(source, **at, **sizes)

    target = opened(model, target_at, block_length, mask_token_id, tokenizer)
    if draft_model is None:
        return target, None
    text = tokenizer if tokenizer is not None else target.tokenizer
    draft = opened(draft_model, draft_at, target.config.block_length, mask_token_id, text)
    check_pair(target, draft)
    return target, draft


def placements(
    model: Source | None,
    draft_model: Source | None,
    *,
    dtype: str = "auto",
    device: str = "auto",
    draft_device: str | None = None,
    quantize: str = "none",
    tensor_parallel_size: int = 1,
    block_length: int | None = None,
    mask_token_id: int | None = None,
    here: bool = True,
) -> list[Placed]:
    """How the checkpoints among the two would be loaded; arguments as of `open_pair`. here: as of `memory.place`.

    Raises: ModelError, PairError, ConfigError.
    """
    model, draft_model = _with_embedded(model, draft_model)
    _check_placement(model, draft_model, draft_device, quantize)
    if tensor_parallel_size > 1:
        _check_parallel(model, draft_model, draft_device, tensor_parallel_size)
    pairs = zip((model, draft_model), _settings(dtype, device, draft_device, quantize), strict=True)
    sizes: dict[str, Any] = {"mask_token_id": mask_token_id, "block_length": block_length}
    placed: list[Placed] = []
    for source, at in pairs:
        if isinstance(source, str | Path):
            placed.append(place(source, ranks=tensor_parallel_size, here=here, **at, **sizes))
            sizes["block_length"] = placed[0].config.block_length  # a draft model takes the target's
    if len(placed) == 2:
        target, draft = ((one.name, one.config) for one in placed)
        check_configs(target, draft)
    return placed


def _with_embedded(model: Source | None, draft_model: Source | None) -> tuple[Source, Source | None]:
    if model is None or (isinstance(model, str) and model == "tiny"):
        return "tiny", "tiny-draft" if draft_model is None else draft_model
    return model, draft_model


def _settings(
    dtype: str, device: str, draft_device: str | None, quantize: str
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Arguments of `load` and `place`: the target's, and the draft model's."""
    target = {"dtype": dtype, "device": device, "int8": quantize == "int8"}
    return target, target | {"device": draft_device or device, "int8": quantize != "none"}


def _check_placement(model: Source, draft_model: Source | None, draft_device: str | None, quantize: str) -> None:
    """Refuses placement of what is not there, and int8 weights for what is loaded already."""
    if draft_model is None and (draft_device is not None or quantize == "int8-draft"):
        given = f"quantize is {quantize!r}" if draft_device is None else f"draft_device is {draft_device!r}"
        raise ConfigError(f"{given}, but there is no draft model; give one, or leave it out")
    if draft_device is not None and not isinstance(draft_model, str | Path):
        raise ConfigError(f"draft_device is {draft_device!r}, but the draft model is loaded; move the module itself")
    meant = {"none": (), "int8-draft": (draft_model,), "int8": (model, draft_model)}[quantize]
    if any(source is not None and not isinstance(source, str | Path) for source in meant):
        raise ConfigError(f"quantize is {quantize!r}, but a loaded module stays as it is; name a checkpoint instead")


def _check_parallel(model: Source, draft_model: Source | None, draft_device: str | None, size: int) -> None:
    """Refuses to split what is loaded already, and a draft model away from the target's ranks."""
    for source in (model, draft_model):
        if isinstance(source, torch.nn.Module | LoadedModel):
            raise ConfigError(
                f"tensor_parallel_size is {size}, but {type(source).__name__} is loaded as a whole; "
                "give its folder or its hub name"
            )
    if draft_device is not None:
        raise ConfigError(
            f"draft_device is {draft_device!r}, but tensor_parallel_size {size} splits the draft model among the "
            "devices of the target; leave one of them out"
        )


def describe(target: LoadedModel[Any], draft: LoadedModel[Any] | None) -> dict[str, str | None]:
    """What a pair is, for reports: names, fingerprints of the files ("model_files", "draft_model_files"), the target's
    dtype, and "draft_device" where it is not the target's."""
    found = {
        "model": target.name,
        "model_files": target.fingerprint,
        "draft_model": None if draft is None else draft.name,
        "draft_model_files": None if draft is None else draft.fingerprint,
        "dtype": str(target.model.dtype).removeprefix("torch."),
    }
    if draft is not None and draft.model.device != target.model.device:
        found["draft_device"] = str(draft.model.device)
    return found
