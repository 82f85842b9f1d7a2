"""`simsd`: the application and its entry point. Importing this module loads neither torch nor transformers."""

from __future__ import annotations

import os
import sys
import warnings
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from simsd import __version__
from simsd.cli import bench, chat, demo, eval, generate, models, serve, sweep, trace
from simsd.cli.errors import INTERRUPTED, USER_ERROR, close_quietly, guarded, report_text
from simsd.text import printable


class _Switches:
    """Shows a switch in the help without a type, which would ask for a value that it does not take."""

    def get_params(self, ctx: Any) -> list[Any]:
        found = super().get_params(ctx)  # pyright: ignore[reportAttributeAccessIssue]
        for parameter in found:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return found


class _Command(_Switches, TyperCommand):
    pass


class _Group(_Switches, TyperGroup):
    pass


app = typer.Typer(
    name="simsd",
    cls=_Group,
    help="Speculative decoding for block-diffusion language models, exact or as in the SimSD paper.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS = (
    *(demo.demo, generate.generate, chat.chat, trace.trace),
    *(bench.bench, sweep.sweep, serve.serve, models.models),
)
for _command in _COMMANDS:
    app.command(cls=_Command)(guarded(_command))
app.command("eval", cls=_Command)(guarded(eval.evaluate))


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"simsd {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and leaves the process with its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # a process may be started without its streams; what is written then goes nowhere
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    warnings.formatwarning = lambda message, *_, **__: f"simsd: warning: {printable(str(message))}\n"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # an answer may hold what the terminal cannot show
    try:
        code: Any = app(args=arguments, prog_name="simsd", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except OSError as error:  # of the help itself; `guarded` has those of the commands
        report_text("OSError", f"cannot write the output: {error.strerror or error}.", as_json=False)
        close_quietly()
        code = 1
    except Exception as error:
        # A wrong flag. Typer's own exception classes moved between its versions; all have this method.
        if not hasattr(error, "format_message"):
            raise
        sentence = error.format_message().rstrip(".")  # pyright: ignore[reportAttributeAccessIssue]
        report_text("UsageError", f"{sentence}; try 'simsd --help'.", "--json" in arguments)
        code = USER_ERROR
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
