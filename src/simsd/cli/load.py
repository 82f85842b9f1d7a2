"""`simsd bench --server`: a running server under load, instead of a model in this process."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simsd.cli import common
from simsd.errors import ConfigError
from simsd.progress import track
from simsd.text import printable

if TYPE_CHECKING:
    from simsd.benchmark.load import LoadResult, Question
    from simsd.benchmark.workload import Item

_SERVER = r"A running server (pip install 'simsd\[serve]')"  # the help would take brackets for a style


def _flag(name: str, text: str, **more: Any) -> Any:
    return typer.Option(name, help=text, rich_help_panel=_SERVER, show_default=False, **more)


Server = Annotated[str | None, _flag("--server", "Measure the OpenAI-compatible server at this URL.")]
Concurrency = Annotated[int | None, _flag("--concurrency", "Clients that ask at the same time. Default: 8.", min=1)]
Requests = Annotated[int | None, _flag("--requests", "Answers in all. Default: each prompt once.", min=1)]
ApiKey = Annotated[str | None, _flag("--api-key", "The server's key.", envvar="SIMSD_API_KEY")]


def check(server: str | None, elsewhere: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuses flags that mean nothing: `elsewhere` those of a run without a server, `here` those of one with it."""
    if server is None:
        given = [flag for flag, value in here.items() if value is not None]
        if given:
            raise ConfigError(f"{given[0]} is given, but no --server; name the server, or leave it out.")
        return
    given = [flag for flag, value in elsewhere.items() if value not in (None, False)]
    if given:
        raise ConfigError(f"{given[0]} does not go with --server: the server has its own; leave it out.")


def extensions(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations of what is asked of the server under its key `simsd`, each once; one empty one where nothing is.

    What says nothing about a method, such as a window in ordinary decoding, is not asked of it.
    """
    from simsd.benchmark.cell import matters

    named = {name: values for name, values in axes.items() if values}
    found: list[dict[str, Any]] = []
    for values in itertools.product(*named.values()):
        asked = dict(zip(named, values, strict=True))
        method, schedule = asked.get("method", ""), asked.get("remasking_strategy", "")
        asked = {name: value for name, value in asked.items() if matters(name, method, schedule)}
        if asked not in found:
            found.append(asked)
    return found


def bench_server(
    url: str,
    items: Sequence[Item],
    asked: Sequence[Mapping[str, Any]],
    temperatures: Sequence[float],
    *,
    concurrency: int,
    requests: int | None,
    as_json: bool,
    **ask: Any,
) -> None:
    """Measures the server once for each of `asked` at each temperature, and prints what came out.

    ask: further fields of `benchmark.load.Ask`.
    """
    from simsd.benchmark.load import Ask, measure

    questions: list[Question] = [item.prompt for item in items]
    runs = list(itertools.product(temperatures, asked))
    results: list[tuple[dict[str, Any], LoadResult]] = []
    with track("Asking", len(runs) * (requests or len(questions)), common.watched()) as advance:
        for temperature, extension in runs:
            wanted = Ask(extension=extension, temperature=temperature, **ask)
            found = measure(url, questions, concurrency=concurrency, requests=requests, ask=wanted, advance=advance)
            results.append(({"temperature": temperature, **extension}, found))
    if as_json:
        common.print_json([{"asked": what, **found.to_dict()} for what, found in results])
    else:
        _print(results)
    if any(found.failures for _, found in results):
        raise typer.Exit(1)


def _print(results: Sequence[tuple[Mapping[str, Any], LoadResult]]) -> None:
    out = common.console()
    for what, found in results:
        out.print(", ".join(f"{name} {value}" for name, value in what.items()), style="bold", markup=False)
        out.print(found.table())
        figures = found.to_dict()
        if figures["tokens_per_forward"] is not None:
            accepted = figures["acceptance_rate"]
            drafts = "" if accepted is None else f", {accepted:.0%} of drafted tokens accepted"
            out.print(f"{figures['tokens_per_forward']:.2f} tokens per target forward{drafts}", style="dim")
        for reason, count in found.failures.items():
            out.print(printable(f"{count} failed: {reason}"), style="red", markup=False)
