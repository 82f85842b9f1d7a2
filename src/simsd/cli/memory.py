"""`simsd models --memory`: what a model and its draft model take, and whether that is free, before any loading.

A device that this machine does not have is shown too, without what is free: one plans for a GPU elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from simsd.cli import common, errors
from simsd.cli.options import Decoding
from simsd.errors import ConfigError, FitError

if TYPE_CHECKING:
    from simsd.models.memory import Placed

FLAGS = ("draft_model", "dtype", "device", "draft_device", "quantize", "tensor_parallel_size")
SIZES = ("mask_token_id", "block_length")  # of the model as it is loaded, with --memory and without
TOKENS = 4096  # of a sequence, unless --max-model-len says otherwise


def show(
    model: str | None, options: Decoding, max_num_seqs: int | None, max_model_len: int | None, as_json: bool
) -> None:
    """Prints the figures. Raises FitError where they are more than is free."""
    from simsd.models.fit import check_fits

    for flag, value in (("--max-num-seqs", max_num_seqs), ("--max-model-len", max_model_len)):
        if value is not None and value < 1:
            raise ConfigError(f"{flag} is {value}; it must be 1 or more.")
    models = _placed(model, options)
    longest = models[0].config.max_position_embeddings
    if max_model_len is not None and max_model_len > longest:
        common.note(f"simsd: --max-model-len is {max_model_len}; {models[0].name} has positions for {longest} tokens.")
    sequences, tokens = max_num_seqs or 1, min(max_model_len or TOKENS, longest)
    found = _figures(models, sequences, tokens)
    try:
        check_fits(models, sequences, tokens)
    except FitError as error:
        if not as_json:
            _print(found)
            raise
        common.print_json(found | {"error": {"type": type(error).__name__, "message": errors.sentence(error)}})
        errors.report(error, as_json=False)
        raise typer.Exit(errors.USER_ERROR) from error
    if as_json:
        common.print_json(found)
    else:
        _print(found)


def check_unused(options: Decoding, max_num_seqs: int | None, max_model_len: int | None) -> None:
    """Refuses flags that mean nothing without --memory. Raises ConfigError."""
    given = {name: getattr(options, name) for name in FLAGS}
    given |= {"max_num_seqs": max_num_seqs, "max_model_len": max_model_len}
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"--{name.replace('_', '-')} is for --memory; add that, or leave it out.")


def check_model(options: Decoding) -> None:
    """Refuses flags that mean nothing without a model. Raises ConfigError."""
    for name in SIZES:
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} is of one model; name it, or leave it out.")


def _placed(model: str | None, options: Decoding) -> list[Placed]:
    """The target and its draft model, as `LLM` would load them where the devices are."""
    from simsd.models.pair import placements

    given = {name: value for name in (*FLAGS, *SIZES) if (value := getattr(options, name)) is not None}
    return placements(model, given.pop("draft_model", None), here=False, **given)


def _figures(models: Sequence[Placed], sequences: int, tokens: int) -> dict[str, Any]:
    from simsd.models import fit, memory
    from simsd.models.available import free_bytes

    needed, most = (fit.needed_bytes(models, sequences, tokens, drafting=drafting) for drafting in (False, True))

    return {
        "max_num_seqs": sequences,
        "max_model_len": tokens,
        "models": [
            {
                "name": model.name,
                "device": str(model.device),
                "tensor_parallel_size": len(model.devices),
                "dtype": str(model.dtype).removeprefix("torch."),
                "int8": model.int8,
                "parameters": sum(memory.parameters(model.config).values()),
                "weight_bytes": model.weight_bytes,
                "weight_bytes_by_part": dict(memory.weight_bytes(model)),
                "cache_bytes_per_token": memory.cache_bytes(model, 1, 1),
                "cache_bytes": memory.cache_bytes(model, sequences, tokens),
                "working_bytes": memory.working_bytes(model, sequences, tokens),
            }
            for model in models
        ],
        "devices": [
            {
                "device": str(device),
                "needed_bytes": needed[device],
                "needed_bytes_drafting": most[device],
                "free_bytes": free_bytes(device),
            }
            for device in needed
        ],
    }


def _print(found: dict[str, Any]) -> None:
    from simsd.models.fit import gib

    sequences, tokens = found["max_num_seqs"], found["max_model_len"]
    title = f"{sequences} sequence{'' if sequences == 1 else 's'} of {tokens} tokens"
    if (ranks := found["models"][0]["tensor_parallel_size"]) > 1:
        title += f", the part of one rank of {ranks}"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("", overflow="fold")
    for one in found["models"]:
        table.add_column(one["name"], justify="right", overflow="fold")
    rows = {
        "device": lambda one: one["device"],
        "numbers": lambda one: one["dtype"] + (", int8 weights" if one["int8"] else ""),
        "parameters": lambda one: f"{one['parameters'] / 1e6:,.1f}M",
        "weights": lambda one: gib(one["weight_bytes"]),
        "cache of a token": lambda one: f"{one['cache_bytes_per_token'] / 1024:,.1f} KiB",
        "cache": lambda one: gib(one["cache_bytes"]),
        "while working": lambda one: gib(one["working_bytes"]),
    }
    for name, cell in rows.items():
        table.add_row(name, *(cell(one) for one in found["models"]))
    out = common.console()
    out.print(table)
    for place in found["devices"]:
        more = place["needed_bytes_drafting"]
        drafting = f", {gib(more)} where rounds draft far" if more > place["needed_bytes"] else ""
        free = "not in this machine" if place["free_bytes"] is None else f"{gib(place['free_bytes'])} free"
        out.print(f"{place['device']}: {gib(place['needed_bytes'])} needed{drafting}; {free}")
