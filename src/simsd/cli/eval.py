"""`simsd eval`: accuracy and speed together, on embedded suites, own files, or tasks of lm-evaluation-harness."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simsd.cli import common, outputs
from simsd.cli.common import AsJson, Raw
from simsd.cli.errors import INTERRUPTED, report_text
from simsd.cli.eval_tables import Found, show
from simsd.cli.options import Decoding, decoding_options
from simsd.cli.tasks import data_files, data_option
from simsd.errors import ConfigError

if TYPE_CHECKING:
    from simsd.evaluation.suites import Question
    from simsd.llm import LLM, SamplingParams

GRADED = ("math", "code", "trivia", "choice")
_SUITES, _HARNESS = "Suites", "Tasks of lm-evaluation-harness (pip install 'simsd\\[eval]')"  # rich would read a tag
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
    names = _names(tasks)
    flags = {"--include-path": include_path, "--data": data, "--num-fewshot": num_fewshot}
    _check_flags(bool(names), raw, flags | {"--apply-chat-template": chat, "--confirm-run-unsafe-code": unsafe})
    chosen = list(dict.fromkeys(suites or ([] if names else GRADED)))
    from simsd.evaluation.quiet import quiet

    with quiet() if names else nullcontext():
        files = data_files(data)
        # what the user got wrong is found before minutes are spent on the model
        outputs.check([("--output", output)], _inputs(chosen, files))
        questions = _questions(chosen, limit)
        params = options.sampling_params()
        generation = _generation(options) if names else {}
        more: dict[str, Any] = {"num_fewshot": num_fewshot, "limit": limit, "chat": chat, "unsafe": unsafe}
        found = Found(asked={name: len(each) for name, each in questions.items()}, tasks=names)
        with outputs.stream(output) as out:
            try:
                task_list = _find(names, include_path, files, unsafe)
                llm = common.open_llm(options, max_num_seqs=batch_size)
                found.llm = llm
                for name in chosen:
                    _suite(llm, name, questions[name], params, raw, found, out)
                if task_list is not None:
                    _tasks(llm, task_list, found, out, gen_kwargs=generation, **more)
            except KeyboardInterrupt:
                found.interrupted = True
    _end(found, output, out.failures, as_json)


def _names(tasks: str | None) -> list[str]:
    names = [name.strip() for name in (tasks or "").split(",") if name.strip()]
    if tasks is not None and not names:
        raise ConfigError("--tasks names no task; give names with commas between them, such as gsm8k,mmlu")
    return list(dict.fromkeys(names))


def _check_flags(with_tasks: bool, raw: bool, of_tasks: Mapping[str, Any]) -> None:
    """Refuses flags that would change nothing. of_tasks: those that only tasks heed, with their values."""
    given = [flag for flag, value in of_tasks.items() if value is not None and value is not False]
    if given and not with_tasks:
        raise ConfigError(f"{given[0]} is for tasks of lm-evaluation-harness; name them with --tasks, or leave it out")
    if raw and with_tasks:
        raise ConfigError("--raw does not go with --tasks: those have a chat template only by --apply-chat-template")


def _inputs(suites: Sequence[str], files: Mapping[str, str]) -> list[outputs.Named]:
    from simsd.evaluation.suites import SUITES

    return [
        *(("--suite", Path(name)) for name in suites if name not in SUITES),
        *(("--data", Path(file)) for file in files.values()),
    ]


def _suite(
    llm: LLM,
    name: str,
    questions: list[Question],
    params: SamplingParams,
    raw: bool,
    found: Found,
    out: outputs.Stream,
) -> None:
    from simsd.evaluation.accuracy import Interrupted, measure

    def keep(answer: Any) -> None:
        _write(out, {"suite": name} | answer.to_dict())

    try:
        result, _ = measure(llm, name, questions, params, raw=raw, progress=common.watched(), keep=keep)
    except Interrupted as stop:
        found.suites.append(stop.result)
        raise
    found.suites.append(result)


def _tasks(llm: LLM, tasks: tuple[list[str], Any], found: Found, out: outputs.Stream, **more: Any) -> None:
    from simsd.evaluation.harness_run import Interrupted, run_tasks

    try:
        found.run = run_tasks(llm, *tasks, **more)
    except Interrupted as stop:
        found.run = stop.run
        raise
    finally:
        for sample in found.run.samples if found.run is not None else ():
            _write(out, sample)


def _write(out: outputs.Stream, entry: Mapping[str, Any]) -> None:
    out.write(json.dumps(entry, ensure_ascii=False, default=str) + "\n")


def _end(found: Found, output: Path | None, failures: Sequence[str], as_json: bool) -> None:
    """Shows what there is, tells what is not right with it, and leaves: by 130 after Ctrl-C, by 1 where a question
    could not be answered."""
    told = [*found.failures, *failures]

    def present() -> None:
        if as_json and found.llm is not None:
            common.print_json(found.to_dict())
        elif not as_json:
            show(found, common.console())

    if not found.interrupted:
        outputs.deliver(present, {}, told)
        return
    with suppress(typer.Exit):
        outputs.deliver(present, {}, told)
    kept = f"; what is finished is in {output}" if output is not None and found.begun else ""
    report_text("Interrupted", f"{found.interruption}{kept}", as_json=False)
    raise typer.Exit(INTERRUPTED)


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


def _find(
    names: Sequence[str], include: Path | None, files: Mapping[str, str], unsafe: bool
) -> tuple[list[str], Any] | None:
    """The harness's tasks of these names; None where none are asked for."""
    if not names:
        return None
    if find_spec("lm_eval") is None:
        raise ConfigError("--tasks needs lm-evaluation-harness; run: pip install 'simsd[eval]'")
    with common.loading("Reading the tasks"):
        from simsd.evaluation.harness_run import find_tasks

        return find_tasks(names, include, files, unsafe=unsafe)
