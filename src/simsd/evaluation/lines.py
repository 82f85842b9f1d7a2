"""JSON Lines from outside: an object a line, or a sentence that names file and line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from simsd.errors import ConfigError

T = TypeVar("T")


def read_text(path: Path) -> str:
    """UTF-8 text, with or without the mark that some editors put first. Raises ConfigError."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start + 1}); convert it first") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); check the path") from error


def parse(text: str, name: str, make: Callable[[dict[str, Any]], T], limit: int | None = None) -> list[T]:
    """What `make` gives for the first `limit` objects; empty lines do not count.

    name: of the file. Raises ConfigError with file and line, also for what `make` raises.
    """
    found: list[T] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        if len(found) == limit:
            break
        try:
            found.append(make(_object(line)))
        except ConfigError as error:
            raise ConfigError(f"{name}, line {number}: {error}") from error
    return found


def text_of(row: dict[str, Any], key: str) -> str:
    """A text of the object. Raises ConfigError."""
    value = row.get(key)
    if not isinstance(value, str):
        raise ConfigError(f"{key!r} is {'missing' if value is None else 'not text'}")
    return value


def texts_of(row: dict[str, Any], key: str) -> list[str]:
    """A list of texts of the object. Raises ConfigError."""
    values = row.get(key)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ConfigError(f"{key!r} is not a list of texts")
    return values


def _object(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])[1:-1]
        raise ConfigError(f"{half} is half of a character (a lone surrogate); write the whole one") from error
    except RecursionError as error:
        raise ConfigError("its JSON is nested too deeply") from error
    except ValueError as error:
        raise ConfigError(f"not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ConfigError(f"expected a JSON object, found {type(row).__name__}")
    return row
