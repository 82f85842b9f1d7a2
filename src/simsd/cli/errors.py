"""How a command ends: the user's mistakes as one sentence and exit code 2, Ctrl-C as 130, a closed pipe quietly."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

import typer

from simsd.errors import FitError, SimsdError
from simsd.text import printable

USER_ERROR = 2
INTERRUPTED = 130


def report(error: SimsdError, as_json: bool) -> None:
    """One sentence on stderr; with `--json` the same as an object on stdout, for whoever reads it."""
    report_text(type(error).__name__, sentence(error), as_json)


def sentence(error: SimsdError) -> str:
    """What is wrong, with options as they are typed here."""
    if not isinstance(error, FitError):
        return str(error)

    def flag(name: str, value: str | None) -> str:
        typed = f"--{name.replace('_', '-')}"
        return f"{typed} {value}" if value else f"a smaller {typed}"

    return error.advise(flag)


def report_text(kind: str, message: str, as_json: bool) -> None:
    message = printable(message)
    if as_json:
        typer.echo(json.dumps({"error": {"type": kind, "message": message}}, ensure_ascii=False))
    line = f"simsd: {message}{'' if message.endswith(('.', '!', '?')) else '.'}"
    with suppress(OSError):  # a stderr that takes nothing must not cost the JSON on stdout
        typer.echo(line, err=True)


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Wraps a command (which has a flag `as_json`, or none) so that it ends as this module's first line says."""

    @wraps(command)
    def wrapper(*args: Any, **values: Any) -> None:
        try:
            command(*args, **values)
        except SimsdError as error:
            report(error, bool(values.get("as_json")))
            raise typer.Exit(USER_ERROR) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error
        except BrokenPipeError as error:
            close_quietly()
            raise typer.Exit(1) from error
        except OSError as error:  # files that the user names are reported where they are used
            report_text("OSError", f"cannot write the output: {error.strerror or error}.", as_json=False)
            close_quietly()
            raise typer.Exit(1) from error
        except Exception as error:
            if not isinstance(error, MemoryError) and type(error).__name__ != "OutOfMemoryError":
                raise
            # torch's own class is told by its name: this module does not load torch
            advice = "use a smaller model, a shorter --max-tokens, --dtype bfloat16 or fewer prompts"
            report_text("MemoryError", f"there is not enough memory; {advice}.", bool(values.get("as_json")))
            raise typer.Exit(USER_ERROR) from error

    return wrapper


def close_quietly() -> None:
    """Sends what is still buffered nowhere: Python would complain about the closed pipe once more at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # stdout is not a file, as in tests
        return
