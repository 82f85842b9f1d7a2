"""`simsd models`: what is embedded, what can be loaded, and what one checkpoint says about itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from simsd.cli import common, memory
from simsd.cli.common import AsJson
from simsd.cli.options import Decoding, decoding_options

if TYPE_CHECKING:
    from simsd.models.config import ModelConfig

# Public checkpoints of the supported types. (name, parameters, trained block length)
PUBLIC = (
    ("JetLM/SDAR-1.7B-Chat", "1.7B", 4),
    ("JetLM/SDAR-1.7B-Chat-b8", "1.7B", 8),
    ("JetLM/SDAR-1.7B-Chat-b16", "1.7B", 16),
    ("JetLM/SDAR-1.7B-Chat-b32", "1.7B", 32),
    ("JetLM/SDAR-1.7B-Chat-b64", "1.7B", 64),
    ("JetLM/SDAR-4B-Chat", "4B", 4),
    ("JetLM/SDAR-4B-Chat-b8", "4B", 8),
    ("JetLM/SDAR-4B-Chat-b16", "4B", 16),
    ("JetLM/SDAR-4B-Chat-b32", "4B", 32),
    ("JetLM/SDAR-4B-Chat-b64", "4B", 64),
    ("JetLM/SDAR-8B-Chat", "8B", 4),
    ("JetLM/SDAR-8B-Chat-b8", "8B", 8),
    ("JetLM/SDAR-8B-Chat-b16", "8B", 16),
    ("JetLM/SDAR-8B-Chat-b32", "8B", 32),
    ("JetLM/SDAR-8B-Chat-b64", "8B", 64),
    ("JetLM/SDAR-30B-A3B-Chat", "30B, 3B active", 4),
    ("JetLM/SDAR-30B-A3B-Chat-b32", "30B, 3B active", 32),
    ("JetLM/SDAR-30B-A3B-Sci", "30B, 3B active", 4),
    ("Gen-Verse/TraDo-4B-Instruct", "4B", 4),
    ("Gen-Verse/TraDo-8B-Instruct", "8B", 4),
    ("Gen-Verse/TraDo-8B-Thinking", "8B", 4),
    ("inclusionAI/LLaDA2.0-mini", "16B, 1.4B active", 32),
    ("inclusionAI/LLaDA2.0-flash", "100B, 6B active", 32),
    ("inclusionAI/LLaDA2.1-mini", "16B, 1.4B active", 32),
    ("inclusionAI/LLaDA2.1-flash", "100B, 6B active", 32),
)


@decoding_options(only=(*memory.FLAGS, *memory.SIZES))
def models(
    *,
    options: Decoding,
    model: Annotated[
        str | None, typer.Argument(help="A folder, a hub name or the name of an embedded model.", show_default=False)
    ] = None,
    show_memory: Annotated[
        bool, typer.Option("--memory", help="Show what loading and running it takes, and whether that is free.")
    ] = False,
    max_num_seqs: Annotated[
        int | None, typer.Option("--max-num-seqs", help="For --memory: sequences side by side.", show_default="1")
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option("--max-model-len", help="For --memory: tokens of each.", show_default=str(memory.TOKENS)),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the models that can be used, show the configuration of one, or the memory that it takes."""
    if show_memory:
        memory.show(model, options, max_num_seqs, max_model_len, as_json)
        return
    memory.check_unused(options, max_num_seqs, max_model_len)
    if model is None:
        memory.check_model(options)
        _list(as_json)
        return
    found = _figures(_config(model, options.mask_token_id, options.block_length))
    if as_json:
        common.print_json({"name": model, **found})
        return
    table = _table(model)
    table.show_header = False
    for name, value in found.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        table.add_row(name, "-" if shown in (None, "") else str(shown))
    common.console().print(table)


def _list(as_json: bool) -> None:
    from simsd.models.loader import EMBEDDED
    from simsd.models.registry import FAMILIES

    embedded = {name: _figures(_config(name)) for name in EMBEDDED}
    if as_json:
        public = [dict(zip(("name", "parameters", "block_length"), row, strict=True)) for row in PUBLIC]
        rows = [{"name": name, **figures} for name, figures in embedded.items()]
        common.print_json({"embedded": rows, "model_types": sorted(FAMILIES), "public": public})
        return
    out = common.console()
    out.print(_embedded_table(embedded))
    out.print(f"\nModel types that can be loaded: {', '.join(sorted(FAMILIES))}\n", markup=False)
    known = Table(
        "name", "parameters", "block length", title="Public checkpoints", title_justify="left", title_style="bold"
    )
    for name, size, block in PUBLIC:
        known.add_row(name, size, str(block))
    out.print(known)


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=Text(title), title_justify="left", title_style="bold")


def _embedded_table(embedded: dict[str, dict[str, Any]]) -> Table:
    table = _table("Embedded", "name", "parameters", "layers", "hidden size", "block lengths")
    for name, figures in embedded.items():
        table.add_row(
            name,
            f"{figures['parameters'] / 1e6:.1f}M",
            str(figures["num_hidden_layers"]),
            str(figures["hidden_size"]),
            ", ".join(map(str, figures["trained_block_lengths"])),
        )
    return table


def _config(model: str, mask_token_id: int | None = None, block_length: int | None = None) -> ModelConfig:
    """The configuration as the loader sees it; of a model on the hub no weights are downloaded."""
    from simsd.models.loader import read_config, resolve

    return read_config(model, resolve(model, weights=False), mask_token_id, block_length)


def _figures(config: ModelConfig) -> dict[str, Any]:
    found = asdict(config)
    found |= found.pop("moe") or {}
    found["parameters"] = _parameters(config)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def _parameters(config: ModelConfig) -> int:
    """Weights of a model of this shape, a tied head counted once."""
    from simsd.models.memory import parameters

    return sum(parameters(config).values())
