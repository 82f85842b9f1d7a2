"""Values of a checkpoint's JSON files, each of the kind that is meant; a ValueError or TypeError for any other."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simsd.errors import ModelError


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or a ModelError that names the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except FileNotFoundError as error:
        raise ModelError(f"{path} does not exist; the checkpoint folder is incomplete.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object.")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def given(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What is said at all: null says nothing."""
    return {key: value for key, value in raw.items() if value is not None}


def integer(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A whole number; 2.7 layers are a mistake, not two."""
    value = _get(raw, key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ValueError(f"{key} is {value!r}, which is not a whole number")
    return int(value)


def optional_integer(raw: Mapping[str, Any], *keys: str) -> int | None:
    """The first that is given."""
    return next((integer(raw, key) for key in keys if raw.get(key) is not None), None)


def integers(raw: Mapping[str, Any], key: str) -> list[int]:
    """A list of whole numbers, or one alone; empty where nothing is said."""
    value = _get(raw, key, [])
    return [integer({key: one}, key) for one in (value if isinstance(value, list) else [value])]


def number(raw: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A finite number; one in quotes is text."""
    value = _get(raw, key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{key} is {value!r}, which is not a number")
    return float(value)


def truth(raw: Mapping[str, Any], key: str, default: bool = False) -> bool:
    """True or false; "false" in quotes would count as true."""
    return kind(raw, key, bool, default)


def kind(raw: Mapping[str, Any], key: str, wanted: type, default: Any = None) -> Any:
    """A value of that Python type."""
    value = _get(raw, key, default)
    if not isinstance(value, wanted):
        raise TypeError(f"{key} is {value!r}, which is not {_NAMES[wanted]}")
    return value


_NAMES = {bool: "true or false", str: "text", list: "a list", dict: "a JSON object"}


def _get(raw: Mapping[str, Any], key: str, default: Any) -> Any:
    value = raw.get(key)
    return default if value is None else value
