"""What `bench` and `sweep` share: the flags of a measurement, and a run that can be interrupted."""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from simsd.cli import common, outputs
from simsd.cli.options import Decoding
from simsd.cli.tasks import data_files, data_option
from simsd.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from simsd.benchmark.cell import Cell
    from simsd.benchmark.measure import Settings
    from simsd.benchmark.report import Column, Report
    from simsd.benchmark.summary import Row
    from simsd.benchmark.workload import Item
    from simsd.llm import LLM

_PROMPTS, _RUN = "Prompts", "Measurement"
LEAST = 14  # columns that names have in the narrowest terminal
_PARTS = re.compile(r"[^=_-]*[=_-]|[^=_-]+")
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
Data = Annotated[list[str] | None, data_option(_PROMPTS)]
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

MODEL = (
    *("model", "draft_model", "mask_token_id", "dtype", "device", "draft_device", "draft_ahead", "quantize"),
    *("tensor_parallel_size", "enforce_eager", "threads"),
)
FIXED = ("layout", "acceptance", "states", "draft_steps", "denoising_steps", "confidence_threshold", "eb_threshold")
SETTINGS = ("max_tokens", "top_k", "top_p", "seed", "ignore_eos")
FLAGS = (*MODEL, *FIXED, *SETTINGS)

T = TypeVar("T")


def fixed(options: Decoding, names: Sequence[str] = FIXED) -> dict[str, Any]:
    """Decoding options of those names that were given; they hold for all cells."""
    given = options.llm_options()
    return {name: given[name] for name in names if name in given}


def settings(options: Decoding, repeats: int, batch_size: int) -> Settings:
    """How all cells are measured."""
    from simsd.benchmark.measure import Settings

    given = {name: value for name in SETTINGS if (value := getattr(options, name)) is not None}
    return Settings(repeats=repeats, batch_size=batch_size, **given)


@dataclass(frozen=True)
class Prompts:
    """What the flags say about prompts; data: files for tasks, by name."""

    suites: Sequence[str] = ()
    files: Sequence[Path] = ()
    tasks: Sequence[str] = ()
    data: Mapping[str, str] = field(default_factory=dict)
    limit: int | None = None

    @classmethod
    def given(
        cls,
        suites: Sequence[str] | None,
        files: Sequence[Path] | None,
        tasks: Sequence[str] | None,
        data: Sequence[str] | None,
        limit: int | None,
    ) -> Prompts:
        """All suites where nothing is named. Raises ConfigError."""
        from simsd.evaluation.quiet import no_bars
        from simsd.evaluation.suites import SUITES

        if tasks:
            no_bars()
        if data and not tasks:
            raise ConfigError("--data is given, but no --task; name the task, such as simsd_gsm8k, or leave it out.")
        if not suites and not files and not tasks:
            suites = SUITES
        return cls(suites or (), files or (), tasks or (), data_files(data), limit)

    @property
    def inputs(self) -> Sequence[outputs.Named]:
        """The files that are read, with their flags."""
        return [("--file", file) for file in self.files] + [("--data", Path(file)) for file in self.data.values()]


def workload(asked: Prompts) -> list[Item]:
    """The prompts themselves. Raises ConfigError."""
    from simsd.benchmark.workload import load_items, task_items
    from simsd.evaluation.quiet import quiet
    from simsd.evaluation.suites import SUITES

    for name in asked.suites:
        if name not in SUITES:
            raise ConfigError(f"--suite is {name!r}; choose one of {', '.join(SUITES)}, or name a file with --file.")
    few = PROMPTS_EACH if asked.limit is None else asked.limit
    items = load_items(asked.suites, few) if asked.suites else []
    items += load_items(asked.files, asked.limit, [*asked.suites, *asked.tasks]) if asked.files else []
    with quiet() if asked.tasks else nullcontext():
        return items + [item for name in asked.tasks for item in task_items(name, few, asked.data)]


def check_files(results: Sequence[outputs.Named], run_file: Path | None, restart: bool, asked: Prompts) -> None:
    """Refuses results and samples that cannot be kept, and a restart of none.

    results: flags with the files that they name. Raises ConfigError.
    """
    outputs.check([("--run", run_file), *results], asked.inputs)
    if run_file is not None:
        from simsd.benchmark.journal import refuse_stranger

        refuse_stranger(run_file)
    if restart and run_file is None:
        raise ConfigError("--restart is given, but no --run; name the file to begin again, or leave it out.")


def load(options: Decoding) -> LLM:
    """The models of a measurement, set up for ordinary decoding; cells change the rest."""
    model = Decoding(**{name: getattr(options, name) for name in MODEL})
    return common.open_llm(model, settled=False, method="none")


def measured(
    llm: LLM, cells: Sequence[Cell], items: Sequence[Item], settings: Settings, run_file: Path | None, restart: bool
) -> Report:
    """Runs the measurement with its progress on stderr. Ctrl-C says what is kept, and passes on."""
    from simsd.benchmark.run import Interrupted, run

    try:
        return run(llm, cells, items, settings, path=run_file, restart=restart, progress=sys.stderr.isatty())
    except Interrupted as stop:
        common.note(f"simsd: {_farewell(stop.done, stop.total, run_file)}")
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
    title: str,
    head: str,
    columns: Sequence[Column],
    sections: Sequence[tuple[str, Sequence[tuple[str, Row]]]],
    width: int,
) -> RenderableType:
    """A table for a terminal of that width: where there is little room, names are folded, and only then numbers cut.

    sections: a heading each, which goes from side to side, with the names and rows below it; head: of the names.
    """
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    shown = [(heading, [(name, [c.show(row) for c in columns]) for name, row in lines]) for heading, lines in sections]
    figures = [cells for _, lines in shown for _, cells in lines]
    heads = [textwrap.wrap(column.title, 8, break_long_words=False) for column in columns]
    taken = [max(map(len, [*words, *cells])) for words, *cells in zip(heads, *figures, strict=True)]
    while sum(taken) > (most := width - 2 - LEAST - 2 * len(taken)) and max(taken) > 1:  # a space at both sides of each
        taken[taken.index(max(taken))] -= 1
    room = LEAST + max(most - sum(taken), 0)
    folded = [[_folded(name, room, "  ") for name, _ in lines] for _, lines in shown]
    widths = [max(len(line) for names in [[head], *folded] for name in names for line in name.split("\n")), *taken]
    parts: list[RenderableType] = [_rows([head, *("\n".join(words) for words in heads)], widths)]
    for (heading, lines), names in zip(shown, folded, strict=True):
        parts.append(Text(_folded(heading, width - 2), style="bold"))
        parts.append(_rows(None, widths, [(name, *cells) for name, (_, cells) in zip(names, lines, strict=True)]))
    return Group(Text(f"{title}\n", style="bold"), *(Padding(part, (0, 1)) for part in parts))


def _rows(heads: Sequence[str] | None, widths: Sequence[int], rows: Sequence[Sequence[str]] = ()) -> Table:
    """The heads of a table, or rows that stand below them: columns of the same widths."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    looks: dict[str, Any] = {"padding": (0, 0, 0, 1), "pad_edge": False, "show_edge": False}
    table = Table(box=SIMPLE_HEAD, show_header=heads is not None, **looks)
    first, *others = heads or [""] * len(widths)
    table.add_column(first, overflow="fold", width=widths[0])
    for words, width in zip(others, widths[1:], strict=True):
        table.add_column(words, justify="right", vertical="bottom", width=width)
    for name, *cells in rows:
        table.add_row(Text(name), *cells)  # a name is no markup
    return table


def _folded(name: str, room: int, indent: str = "") -> str:
    """Lines of that room. They break between words, and a word that is too long after its signs; not inside a part."""
    lines, further = [""], f"{indent}  "
    for word in name.split():
        fits = len(further) + len(word) <= room
        for at, part in enumerate([word] if fits else _PARTS.findall(word)):
            start = indent if len(lines) == 1 else further
            joined = f"{lines[-1]}{' ' if lines[-1] and not at else ''}{part}"
            if lines[-1] and len(start) + len(joined) > room:
                lines.append(part)
            else:
                lines[-1] = joined
    return "\n".join(f"{further if at else indent}{line}" for at, line in enumerate(lines))
