"""What `bench` and `sweep` share: the flags of a measurement, and a run that can be interrupted."""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from simsd.cli import common
from simsd.cli.options import Decoding
from simsd.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from simsd.benchmark.cell import Cell
    from simsd.benchmark.measure import Settings
    from simsd.benchmark.report import Column, Report
    from simsd.benchmark.summary import Row
    from simsd.benchmark.workload import Item
    from simsd.llm import LLM

_PROMPTS, _RUN = "Prompts", "Measurement"
PROMPTS_EACH = 2  # of a suite or task, unless --limit says otherwise: a run on the embedded pair takes seconds

Suites = Annotated[
    list[str] | None,
    typer.Option(
        "--suite",
        help="An embedded suite (math, code, trivia, choice, chat); may be repeated. Default: all five.",
        rich_help_panel=_PROMPTS,
        show_default=False,
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        "-f",
        help='JSON Lines: {"prompt"}, {"messages"} or questions as in the suites; may be repeated.',
        rich_help_panel=_PROMPTS,
        show_default=False,
    ),
]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--task",
        help="A task of lm-evaluation-harness, such as gsm8k; may be repeated.",
        rich_help_panel=_PROMPTS,
        show_default=False,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        help=f"Prompts from each. Default: {PROMPTS_EACH} of a suite or task, all of a file.",
        rich_help_panel=_PROMPTS,
        show_default=False,
    ),
]
Repeats = Annotated[
    int, typer.Option("--repeats", help="How often every prompt is decoded by every method.", rich_help_panel=_RUN)
]
BatchSize = Annotated[int, typer.Option("--batch-size", help="Sequences decoded side by side.", rich_help_panel=_RUN)]
RunFile = Annotated[
    Path | None,
    typer.Option(
        "--run",
        help="Keep the samples in this file, and go on with those that it holds. Default: nothing is kept.",
        rich_help_panel=_RUN,
        show_default=False,
    ),
]
Restart = Annotated[
    bool, typer.Option("--restart", help="Throw away what the file of --run holds.", rich_help_panel=_RUN)
]

MODEL = ("model", "draft_model", "dtype", "device", "draft_device", "quantize", "tensor_parallel_size", "threads")
FIXED = ("layout", "acceptance", "states", "draft_steps", "denoising_steps", "confidence_threshold", "eb_threshold")
SETTINGS = ("max_tokens", "top_k", "top_p", "seed", "ignore_eos")
FLAGS = (*MODEL, *FIXED, *SETTINGS)

T = TypeVar("T")


def fixed(options: Decoding, names: Sequence[str] = FIXED) -> dict[str, Any]:
    """Decoding options of those names that were given; they hold for all cells."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def settings(options: Decoding, repeats: int, batch_size: int) -> Settings:
    """How all cells are measured."""
    from simsd.benchmark.measure import Settings

    given = {name: value for name in SETTINGS if (value := getattr(options, name)) is not None}
    return Settings(repeats=repeats, batch_size=batch_size, **given)


def workload(
    suites: Sequence[str] | None, files: Sequence[Path] | None, tasks: Sequence[str] | None, limit: int | None
) -> list[Item]:
    """The prompts that the flags name. Raises ConfigError."""
    from simsd.benchmark.workload import load_items, task_items
    from simsd.evaluation.suites import SUITES

    for name in suites or ():
        if name not in SUITES:
            raise ConfigError(f"--suite is {name!r}; choose one of {', '.join(SUITES)}, or name a file with --file.")
    if not suites and not files and not tasks:
        suites = SUITES
    few = PROMPTS_EACH if limit is None else limit
    items = load_items(suites, few) if suites else []
    items += load_items(files, limit) if files else []
    return items + [item for name in tasks or () for item in task_items(name, few)]


def check_run(run_file: Path | None, restart: bool) -> None:
    """Refuses a file that cannot be kept, and a restart of none. Raises ConfigError."""
    common.check_place("--run", run_file)
    if restart and run_file is None:
        raise ConfigError("--restart is given, but no --run; name the file to begin again, or leave it out.")


def load(options: Decoding) -> LLM:
    """The models of a measurement, set up for ordinary decoding; cells change the rest."""
    model = Decoding(**{name: getattr(options, name) for name in MODEL})
    with common.loading("Loading the model"):
        return common.make_llm(model, method="none")


def measured(
    llm: LLM, cells: Sequence[Cell], items: Sequence[Item], settings: Settings, run_file: Path | None, restart: bool
) -> Report:
    """Runs the measurement with its progress on stderr. Ctrl-C says what is kept, and passes on."""
    from simsd.benchmark.run import Interrupted, run

    try:
        return run(llm, cells, items, settings, path=run_file, restart=restart, progress=sys.stderr.isatty())
    except Interrupted as stop:
        typer.echo(f"simsd: {_farewell(stop.done, stop.total, run_file)}", err=True)
        raise


def _farewell(done: int, total: int, run_file: Path | None) -> str:
    if run_file is None:
        return f"interrupted after {done} of {total} samples; nothing is kept: with --run FILE a run can go on later."
    again = shlex.join(["simsd", *(word for word in sys.argv[1:] if word != "--restart")])
    return f"interrupted; {done} of {total} samples are kept in {run_file}. To go on: {again}"


def listed(flag: str, given: Sequence[str] | None, default: Sequence[T], read: Callable[[str, str], T]) -> list[T]:
    """The values of a flag that takes several, with commas or by repeating it, each once.

    read: called with the flag and a word; raises ConfigError.
    """
    words = [word.strip() for text in given or () for word in text.split(",")]
    return list(dict.fromkeys(read(flag, word) for word in words)) or list(default)


def whole(flag: str, word: str) -> int:
    """A number of at least 1."""
    if not word.isascii() or not word.isdigit() or int(word) < 1:
        raise ConfigError(f"{flag} has {word!r}; give whole numbers of 1 or more, such as {flag} 4,8.")
    return int(word)


def number(flag: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ConfigError(f"{flag} has {word!r}; give numbers, such as {flag} 0,1.") from None


def one_of(choices: Sequence[str]) -> Callable[[str, str], str]:
    def read(flag: str, word: str) -> str:
        if word not in choices:
            raise ConfigError(f"{flag} has {word!r}; choose from {', '.join(choices)}.")
        return word

    return read


def show_facts(report: Report, out: Console) -> None:
    """What was run, before the tables."""
    for name, text in report.facts.items():
        out.print(f"{name}: {text}", style="dim", markup=False)


def table(
    title: str, head: str, columns: Sequence[Column], sections: Sequence[tuple[str, Sequence[tuple[str, Row]]]]
) -> Table:
    """A table for the terminal. sections: a heading each, with the names and rows below it; head: of the names."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False
    )
    table.add_column(head, overflow="fold")  # where there is little room, names give way and not numbers
    for column in columns:
        words = "\n".join(textwrap.wrap(column.title, 8, break_long_words=False))
        table.add_column(words, justify="right", vertical="bottom")
    for heading, lines in sections:
        table.add_row(Text(heading, style="bold"))
        for name, row in lines:
            table.add_row(Text(f"  {name}"), *(column.show(row) for column in columns))
    return table
