"""Local files for tasks of lm-evaluation-harness, as `eval`, `bench` and `sweep` take them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from simsd.errors import ConfigError


def data_option(panel: str) -> Any:
    """The flag; it stands in a panel of the command's help."""
    return typer.Option(
        "--data",
        metavar="NAME=FILE",
        help="A local file for a task: gsm8k=FILE for simsd_gsm8k, mbpp=FILE for simsd_mbpp.",
        rich_help_panel=panel,
        show_default=False,
    )


def data_files(entries: Sequence[str] | None) -> dict[str, str]:
    """The files by their names, from the values of --data. Raises ConfigError."""
    return dict(_pair(entry) for entry in entries or ())


def _pair(entry: str) -> tuple[str, str]:
    name, equals, file = entry.partition("=")
    if not (name and equals and file):
        raise ConfigError(f"--data is {entry!r}; write NAME=FILE, such as gsm8k=test.jsonl")
    if not Path(file).is_file():
        raise ConfigError(f"--data {name}: there is no file {file}; check the path")
    return name, file
