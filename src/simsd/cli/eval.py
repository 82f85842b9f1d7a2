"""`simsd eval`: accuracy and speed together, on embedded suites, own files, or tasks of lm-evaluation-harness."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simsd.cli import common
from simsd.cli.common import AsJson, Raw
from simsd.cli.options import Decoding, decoding_options
from simsd.cli.tasks import data_files, data_option
from simsd.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from simsd.evaluation.accuracy import Accuracy
    from simsd.evaluation.harness_run import TaskRun
    from simsd.evaluation.suites import Question
    from simsd.llm import LLM, SamplingParams

Write = Callable[[Iterable[Mapping[str, Any]]], None]

GRADED = ("math", "code", "trivia", "choice")
_SUITES, _HARNESS = "Suites", "Tasks of lm-evaluation-harness (pip install 'simsd[eval]')"
_GENERATION = {"max_tokens": "max_gen_toks", "temperature": "temperature", "top_k": "top_k", "top_p": "top_p"}


@decoding_options()
def evaluate(
    *,
    options: Decoding,
    suites: Annotated[
        list[str] | None,
        typer.Option(
            "--suite",
            help=f"{', '.join(GRADED)}, chat, or a JSON Lines file; may be repeated. Default: the first four.",
            rich_help_panel=_SUITES,
            show_default=False,
        ),
    ] = None,
    raw: Raw = False,
    tasks: Annotated[
        str | None,
        typer.Option("--tasks", help="Names, with commas: gsm8k,mmlu.", rich_help_panel=_HARNESS, show_default=False),
    ] = None,
    include_path: Annotated[
        Path | None,
        typer.Option("--include-path", help="A folder of further task files.", rich_help_panel=_HARNESS),
    ] = None,
    data: Annotated[list[str] | None, data_option(_HARNESS)] = None,
    num_fewshot: Annotated[
        int | None,
        typer.Option("--num-fewshot", help="Examples in the prompt.", rich_help_panel=_HARNESS, min=0),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--apply-chat-template", help="Ask as a conversation.", rich_help_panel=_HARNESS)
    ] = False,
    unsafe: Annotated[
        bool,
        typer.Option(
            "--confirm-run-unsafe-code", help="Allow tasks that run code unguarded.", rich_help_panel=_HARNESS
        ),
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", help="The first questions of each only.", min=1)] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Questions side by side.", min=1)] = 16,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write each question with its answer, a JSON line each.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure accuracy and speed together."""
    names = [name.strip() for name in (tasks or "").split(",") if name.strip()]
    if tasks is not None and not names:
        raise ConfigError("--tasks names no task; give names with commas between them, such as gsm8k,mmlu")
    chosen = suites or ([] if names else list(GRADED))
    # what the user got wrong is found before minutes are spent on the model
    questions = _questions(chosen, limit)
    params = options.sampling_params()
    generation = _generation(options) if names else {}
    found = _find(names, include_path, data or [], unsafe)
    with _lines(output) as write:
        with common.loading("Loading the model"):
            llm = common.make_llm(options, max_num_seqs=batch_size)
        results = [_suite(llm, name, questions[name], params, raw, write) for name in chosen]
        run = None
        if found is not None:
            from simsd.evaluation.harness_run import run_tasks

            more: dict[str, Any] = {"num_fewshot": num_fewshot, "limit": limit, "chat": chat, "unsafe": unsafe}
            run = run_tasks(llm, *found, gen_kwargs=generation, **more)
            write(run.samples)
    if as_json:
        harness = None if run is None else _harness_json(run)
        suites_json = [result.to_dict() for result in results]
        common.print_json({"options": asdict(llm.options), "suites": suites_json, "harness": harness})
    else:
        _print(results, run)


def _suite(llm: LLM, name: str, questions: list[Question], params: SamplingParams, raw: bool, write: Write) -> Accuracy:
    from simsd.evaluation.accuracy import measure

    result, answers = measure(llm, name, questions, params, raw=raw, progress=common.watched())
    write({"suite": name} | answer.to_dict() for answer in answers)
    return result


def _questions(suites: Sequence[str], limit: int | None) -> dict[str, list[Question]]:
    from simsd.evaluation.suites import load_suite

    return {name: load_suite(name, limit) for name in suites}


def _generation(options: Decoding) -> dict[str, Any]:
    """The sampling flags as the harness's generation arguments, which go before the tasks' own."""
    for flag, value in (("--stop", options.stop), ("--ignore-eos", options.ignore_eos)):
        if value:
            raise ConfigError(f"{flag} does not go with --tasks: a task says itself where an answer ends; leave it out")
    given = {theirs: getattr(options, ours) for ours, theirs in _GENERATION.items()}
    given = {name: value for name, value in given.items() if value is not None}
    if given.get("temperature"):
        given |= {"do_sample": True} | ({} if options.seed is None else {"seed": options.seed})
    return given


def _find(names: Sequence[str], include: Path | None, data: Sequence[str], unsafe: bool) -> Any:
    """The harness's tasks of these names; None where none are asked for."""
    if not names:
        return None
    if find_spec("lm_eval") is None:
        raise ConfigError("--tasks needs lm-evaluation-harness; run: pip install 'simsd[eval]'")
    with common.loading("Reading the task files"):
        from simsd.evaluation.harness_run import find_tasks

        return find_tasks(names, include, data_files(data), unsafe=unsafe)


@contextmanager
def _lines(file: Path | None) -> Iterator[Write]:
    """Writes objects as JSON lines into `file`, each line at once; nowhere where there is none."""
    if file is None:
        yield lambda entries: None
        return
    try:
        out = file.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written ({error.strerror}); choose another path") from error

    def write(entries: Iterable[Mapping[str, Any]]) -> None:
        for entry in entries:
            out.write(json.dumps(entry, ensure_ascii=False, default=str) + "\n")
        out.flush()

    with out:
        yield write


def _harness_json(run: TaskRun) -> dict[str, Any]:
    return {"tasks": [asdict(result) for result in run.results], **run.cost.to_dict()}


def _print(results: Sequence[Accuracy], run: TaskRun | None) -> None:
    out = common.console()
    if results:
        out.print(_suite_table(results))
        out.print("; ".join(f"{result.suite}: {result.cost.endings}" for result in results), style="dim", markup=False)
    if run is not None:
        out.print(_task_table(run))
        out.print(f"Generated text: {run.cost}.", style="dim", markup=False)


def _suite_table(results: Sequence[Accuracy]) -> Table:
    from rich.table import Table

    table = Table("suite", title="Suites", title_justify="left", title_style="bold")
    for name in ("right", "accuracy (95 %)", "tokens per\nforward", "drafts\naccepted", "tokens/s"):
        table.add_column(name, justify="right")
    for result in results:
        low, high = result.interval
        table.add_row(
            result.suite,
            f"{result.right} of {result.questions}",
            f"{result.accuracy:.1%} ({low:.1%} - {high:.1%})",
            f"{result.cost.tokens_per_forward:.2f}",
            result.cost.acceptance,
            f"{result.cost.stats.tokens_per_second:.0f}",
        )
    return table


def _task_table(run: TaskRun) -> Table:
    from rich.table import Table

    table = Table("task", "questions", "shots", "metric", "filter", title="Tasks", title_justify="left")
    table.add_column("value", justify="right")
    table.add_column("standard error", justify="right")
    for result in run.results:
        for key, value in result.metrics.items():
            metric, _, kept = key.partition(",")
            if metric.endswith("_stderr"):
                continue
            error = result.metrics.get(f"{metric}_stderr,{kept}")
            spread = "-" if error is None else f"{error:.4f}"
            table.add_row(
                result.task, str(result.questions), str(result.num_fewshot), metric, kept, f"{value:.4f}", spread
            )
    return table
