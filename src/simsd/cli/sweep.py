"""`simsd sweep`: the paper's ablations by name, as a plot and a table each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simsd.cli import common, measuring, outputs
from simsd.cli.common import AsJson
from simsd.cli.measuring import BatchSize, Data, Files, Limit, Prompts, Repeats, Restart, RunFile, Suites, Tasks
from simsd.cli.options import Decoding, decoding_options
from simsd.errors import ConfigError

if TYPE_CHECKING:
    from simsd.benchmark.recipes import Recipe, Value
    from simsd.benchmark.sweep import Sweep
    from simsd.llm import LLM

# Those that mean something for every curve of every recipe, where the recipe does not vary them.
FIXED = ("drafter", "num_speculative_tokens", "draft_steps", "block_length", "denoising_steps", "confidence_threshold")

KINDS = ("json", "csv", "md", "png", "svg")  # of the files that --output writes
WIDE = 96  # columns of a terminal that has room for all of a sweep's table


@decoding_options(only=(*measuring.MODEL, *FIXED, "temperature", *measuring.SETTINGS))
def sweep(
    name: Annotated[str | None, typer.Argument(help="The recipe; --list shows them.", show_default=False)] = None,
    *,
    options: Decoding,
    show_list: Annotated[bool, typer.Option("--list", help="Show the recipes.")] = False,
    values: Annotated[
        list[str] | None,
        typer.Option("--values", help="Values to try, such as 1,2,4. Default: the recipe's.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", help="Write NAME.json, .csv, .md, .png and .svg into this folder.", show_default=False
        ),
    ] = None,
    suites: Suites = None,
    files: Files = None,
    tasks: Tasks = None,
    data: Data = None,
    limit: Limit = None,
    repeats: Repeats = 3,
    batch_size: BatchSize = 1,
    run_file: RunFile = None,
    restart: Restart = False,
    as_json: AsJson = False,
) -> None:
    """Repeat one of the paper's ablations: what the window, the block length or the layout does."""
    if show_list:
        _list(as_json)
        return
    recipe = _recipe(name)
    fixed = measuring.fixed(options, FIXED)
    if recipe.option in fixed:
        flag = f"--{recipe.option.replace('_', '-')}"
        raise ConfigError(f"{flag} is what {recipe.name!r} varies; leave it out, or give several with --values.")
    asked = measuring.listed("--values", values, (), lambda _, word: recipe.parse(word))
    prompts = Prompts.given(suites, files, tasks, data, limit)
    measuring.check_files(_results(recipe, output), run_file, restart, prompts)
    settings = measuring.settings(options, repeats, batch_size)
    items = measuring.workload(prompts)
    llm = measuring.load(options)
    tried = _values(recipe, asked, llm)
    fixed = {"block_length": llm.options.block_length, **fixed}
    temperature = options.temperature or 0.0
    report = measuring.measured(llm, recipe.cells(tried, fixed, temperature), items, settings, run_file, restart)
    from simsd.benchmark.sweep import Sweep

    found = Sweep.of(recipe, tried, fixed, temperature, report)
    written = {} if output is None else _files(found, output)
    outputs.deliver(lambda: common.print_json(found.to_dict()) if as_json else show(found), written)
    if written:
        common.note(f"wrote {', '.join(map(str, written))}")


def _recipe(name: str | None) -> Recipe:
    from simsd.benchmark.recipes import RECIPES

    if name is None or name not in RECIPES:
        given = "no recipe is named" if name is None else f"there is no recipe {name!r}"
        raise ConfigError(f"{given}; choose one of {', '.join(RECIPES)}.")
    return RECIPES[name]


def _values(recipe: Recipe, asked: list[Value], llm: LLM) -> list[Value]:
    """Those asked for, or the recipe's own; sizes in order."""
    drafts = llm.loaded["draft_model"] is not None
    if not asked and not drafts and recipe.drafting:
        left_out = " and ".join(map(repr, recipe.drafting))
        typer.echo(f"simsd: without a draft model {left_out} are left out.", err=True)
    found: list[Any] = asked or list(recipe.default_values(drafts))
    return sorted(found) if recipe.ordered else found


def _results(recipe: Recipe, folder: Path | None) -> list[outputs.Named]:
    """The files that the folder is to hold, which is made. Raises ConfigError, before a measurement that is long."""
    if folder is None:
        return []
    from simsd.benchmark import plots

    plots.require()
    outputs.refuse_dash("--output", folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output is {str(folder)!r}, which cannot be a folder ({error.strerror}).") from error
    return [("--output", folder / f"{recipe.name}.{kind}") for kind in KINDS]


def _files(found: Sweep, folder: Path) -> dict[Path, Callable[[], str | bytes]]:
    """What each file of the folder is to hold."""
    from simsd.benchmark.curves import figure
    from simsd.benchmark.plots import image

    contents: dict[str, Callable[[], str | bytes]] = {
        "json": lambda: json.dumps(found.to_dict(), indent=2, allow_nan=False) + "\n",
        "csv": found.csv_text,
        "md": lambda: found.markdown(f"{found.recipe.name}.svg"),
        "png": lambda: image(figure(found), "png"),
        "svg": lambda: image(figure(found), "svg"),
    }
    return {folder / f"{found.recipe.name}.{kind}": contents[kind] for kind in KINDS}


# ---------------------------------------------------------------------- the terminal
def show(found: Sweep) -> None:
    """Prints the facts, and a table with a section for each curve."""
    out = common.console()
    measuring.show_facts(found.report, out)
    sections = [(one.curve.label, one.points(found.values)) for one in found.series]
    columns = [column for column in found.columns if column.title != "quartiles" or out.width >= WIDE]
    out.print()
    out.print(measuring.table(found.title, found.recipe.name, columns, sections, out.width))


def _list(as_json: bool) -> None:
    from simsd.benchmark.recipes import RECIPES

    if as_json:
        names = ("name", "title", "question", "axis", "option", "values")
        common.print_json([{name: getattr(recipe, name) for name in names} for recipe in RECIPES.values()])
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for head in ("recipe", "question", "values"):
        table.add_column(head)
    for recipe in RECIPES.values():
        table.add_row(recipe.name, recipe.question, ", ".join(map(str, recipe.values)))
    common.console().print(table)
