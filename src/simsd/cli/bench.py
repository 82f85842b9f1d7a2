"""`simsd bench`: a matrix of ways to decode, measured against ordinary decoding on the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simsd.cli import common, load, measuring, outputs
from simsd.cli.common import AsJson
from simsd.cli.measuring import BatchSize, Data, Files, Limit, Prompts, Repeats, Restart, RunFile, Suites, Tasks
from simsd.cli.options import DRAFTERS, METHODS, STRATEGIES, Decoding, decoding_options, window

if TYPE_CHECKING:
    from rich.console import Console

    from simsd.benchmark.cell import Cell
    from simsd.benchmark.report import Report

BENCHED = tuple(name for name in DRAFTERS if name != "trajectory")  # that needs decodings recorded before
SHORT_SCHEDULES = ("static", "dynamic")
# Flags of a model in this process; a running server has its own.
LOCAL = (*measuring.MODEL, *measuring.FIXED, "top_k", "top_p", "seed", "ignore_eos")


def _axis(name: str, text: str) -> Any:
    """A flag with several values; its singular is the name that other commands have for one."""
    one = name.removesuffix("s")
    return typer.Option(name, one, help=text, rich_help_panel="Matrix", show_default=False, metavar="LIST")


def _output(name: str, text: str) -> Any:
    return typer.Option(name, help=text, rich_help_panel="Output", show_default=False)


@decoding_options(only=measuring.FLAGS)
def bench(
    *,
    options: Decoding,
    methods: Annotated[
        list[str] | None, _axis("--methods", f"Of {', '.join(METHODS)}. Default: none,simsd,exact.")
    ] = None,
    schedules: Annotated[
        list[str] | None,
        _axis("--schedules", f"static, dynamic, or any of {', '.join(STRATEGIES)}. Default: static,dynamic."),
    ] = None,
    windows: Annotated[
        list[str] | None,
        _axis("--windows", "Draft windows in tokens, or auto for the method's own. Default: auto."),
    ] = None,
    drafters: Annotated[
        list[str] | None, _axis("--drafters", f"Of {', '.join(BENCHED)}. Default: the method's own.")
    ] = None,
    block_lengths: Annotated[
        list[str] | None, _axis("--block-lengths", "Tokens in a block. Default: the checkpoint's.")
    ] = None,
    temperatures: Annotated[list[str] | None, _axis("--temperatures", "0 is greedy. Default: 0.")] = None,
    suites: Suites = None,
    files: Files = None,
    tasks: Tasks = None,
    data: Data = None,
    limit: Limit = None,
    repeats: Repeats = 3,
    batch_size: BatchSize = 1,
    run_file: RunFile = None,
    restart: Restart = False,
    csv: Annotated[Path | None, _output("--csv", "Write all figures to this file.")] = None,
    markdown: Annotated[Path | None, _output("--markdown", "Write the tables to this file.")] = None,
    html: Annotated[Path | None, _output("--html", "Write a self-contained page with plots to this file.")] = None,
    server: load.Server = None,
    concurrency: load.Concurrency = None,
    requests: load.Requests = None,
    api_key: load.ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Measure methods against ordinary decoding: all on the same prompts, in turn. With --server: a running server."""
    local: dict[str, Any] = {f"--{name.replace('_', '-')}": getattr(options, name) for name in LOCAL}
    local |= {"--block-lengths": block_lengths, "--run": run_file, "--restart": restart}
    local |= {"--csv": csv, "--markdown": markdown, "--html": html}
    load.check(server, local, {"--concurrency": concurrency, "--requests": requests})
    prompts = Prompts.given(suites, files, tasks, data, limit)
    if server is not None:
        warm = measuring.listed("--temperatures", temperatures, (options.temperature or 0.0,), measuring.number)
        load.bench_server(
            server,
            measuring.workload(prompts),
            load.extensions(_asked(methods, schedules, windows, drafters)),
            warm,
            concurrency=concurrency or 8,
            requests=requests,
            as_json=as_json,
            api_key=api_key,
            max_tokens=options.max_tokens or 128,
        )
        return
    measuring.check_files([("--csv", csv), ("--markdown", markdown), ("--html", html)], run_file, restart, prompts)
    if html is not None:
        from simsd.benchmark import plots

        plots.require()
    cells = _cells(options, methods, schedules, windows, drafters, block_lengths, temperatures)
    settings = measuring.settings(options, repeats, batch_size)
    items = measuring.workload(prompts)
    report = measuring.measured(measuring.load(options), cells, items, settings, run_file, restart)
    written = _files(report, csv, markdown, html)
    outputs.deliver(lambda: common.print_json(report.to_dict()) if as_json else show(report, common.console()), written)


def _asked(
    methods: list[str] | None, schedules: list[str] | None, windows: list[str] | None, drafters: list[str] | None
) -> dict[str, list[Any]]:
    """What a server is asked for under its own key: what the flags name, and nothing else."""
    given = measuring.listed
    return {
        "method": given("--methods", methods, (), measuring.one_of(METHODS)),
        "remasking_strategy": _strategies(schedules, ()),
        "num_speculative_tokens": given("--windows", windows, (), _window),
        "drafter": given("--drafters", drafters, (), measuring.one_of(BENCHED)),
    }


def _strategies(schedules: list[str] | None, default: Sequence[str]) -> list[str]:
    from simsd.benchmark.cell import SCHEDULES

    names = measuring.one_of((*SHORT_SCHEDULES, *STRATEGIES))
    return [SCHEDULES.get(name, name) for name in measuring.listed("--schedules", schedules, default, names)]


def _cells(
    options: Decoding,
    methods: list[str] | None,
    schedules: list[str] | None,
    windows: list[str] | None,
    drafters: list[str] | None,
    block_lengths: list[str] | None,
    temperatures: list[str] | None,
) -> list[Cell]:
    from simsd.benchmark.cell import matrix

    given = measuring.listed
    return matrix(
        given("--methods", methods, ("none", "simsd", "exact"), measuring.one_of(METHODS)),
        schedules=_strategies(schedules, SHORT_SCHEDULES),
        block_lengths=given("--block-lengths", block_lengths, (None,), measuring.whole),
        temperatures=given("--temperatures", temperatures, (0.0,), measuring.number),
        vary={
            "num_speculative_tokens": given("--windows", windows, (None,), _own_or_fixed),
            "drafter": given("--drafters", drafters, (None,), measuring.one_of(BENCHED)),
        },
        fixed=measuring.fixed(options),
    )


def _window(flag: str, word: str) -> int | str:
    return window(flag, word, "has")


def _own_or_fixed(flag: str, word: str) -> int | None:
    """None is the method's own, which a label need not name."""
    found = _window(flag, word)
    return found if isinstance(found, int) else None


def _files(
    report: Report, csv: Path | None, markdown: Path | None, html: Path | None
) -> dict[Path, Callable[[], str | bytes]]:
    """What each file that is asked for is to hold."""
    from simsd.benchmark import report as text
    from simsd.benchmark.page import page

    named: list[tuple[Path | None, Callable[[], str | bytes]]] = [
        (csv, lambda: text.csv_text(report)),
        (markdown, lambda: f"# simsd bench\n\n{text.markdown(report)}"),
        (html, lambda: page(report)),
    ]
    return {file: content for file, content in named if file is not None}


# ---------------------------------------------------------------------- the terminal
def show(report: Report, out: Console) -> None:
    """Prints the facts and the tables."""
    from simsd.benchmark.report import tables

    measuring.show_facts(report, out)
    sections = [(place, [(report.labels[row.cell.key], row) for row in rows]) for place, rows in report.places]
    for title, columns in tables(report).items():
        out.print()
        out.print(measuring.table(title, "method", columns, sections, out.width))
