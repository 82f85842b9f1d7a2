"""`simsd demo`: what speculative decoding does, measured on the embedded pair in under a minute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simsd.cli import common
from simsd.cli.common import AsJson
from simsd.cli.options import Decoding, decoding_options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from simsd.evaluation.suites import Question
    from simsd.llm import LLM, Completion

BLOCK_LENGTH = 4
MAX_TOKENS = 128
METHODS = ("none", "simsd", "exact")
SCHEDULES = {"static": "low_confidence_static", "dynamic": "low_confidence_dynamic"}
NOTE = (
    "tokens/s: greedy, one question at a time, prefill excluded. same text: share equal to 'none' on the same schedule."
)

Way = tuple[str, str]  # method, schedule


@dataclass(frozen=True)
class Row:
    """One line of the table; rates are None where nothing was drafted."""

    method: str
    schedule: str
    tokens_per_second: float
    ratio_to_static: float
    tokens_per_forward: float
    acceptance_rate: float | None
    accuracy: float
    same_text: float


@decoding_options(only=("dtype", "device", "draft_device", "draft_ahead", "quantize", "enforce_eager", "threads"))
def demo(
    *,
    options: Decoding,
    questions: Annotated[int, typer.Option("--questions", hidden=True, min=1)] = 12,
    as_json: AsJson = False,
) -> None:
    """Compare ordinary and speculative decoding on the embedded pair, speed, text and answers."""
    out = common.console()
    ways = _ways(common.open_llm(options, "the embedded pair", settled=False, block_length=BLOCK_LENGTH))
    asked = _questions(questions)
    warm_up = _measure_one(ways, asked[0])
    if not as_json:
        _introduce(asked[0], warm_up, out)
    answers: dict[Way, list[Completion]] = {way: [] for way in ways}
    for question in _with_progress(asked):
        for way, completion in _measure_one(ways, question).items():
            answers[way].append(completion)
    with common.loading("Grading the answers"):
        rows = [_row(way, answers, asked) for way in ways]
    if as_json:
        common.print_json(
            {"rows": [asdict(row) for row in rows], "questions": len(asked), "block_length": BLOCK_LENGTH}
        )
        return
    out.print(_table(rows, len(asked)))
    out.print(NOTE, style="dim", markup=False)


def _ways(base: LLM) -> dict[Way, LLM]:
    """Every method on every schedule, all on the weights of `base`."""
    return {
        (method, name): base.with_options(method=method, remasking_strategy=strategy)
        for name, strategy in SCHEDULES.items()
        for method in METHODS
    }


def _questions(count: int) -> list[Question]:
    """The first questions of all five skills, in turn."""
    from simsd.evaluation.suites import SUITES, load_suite

    suites = [load_suite(name, limit=-(-count // len(SUITES))) for name in SUITES]
    return [question for turn in zip(*suites, strict=False) for question in turn][:count]


def _measure_one(ways: dict[Way, LLM], question: Question) -> dict[Way, Completion]:
    """All ways on one question, one after the other: what slows the machine for a moment slows none of them alone."""
    from simsd.evaluation.suites import messages
    from simsd.llm import SamplingParams

    params = SamplingParams(max_tokens=MAX_TOKENS)
    return {way: llm.chat(messages(question), params)[0] for way, llm in ways.items()}


def _row(way: Way, answers: dict[Way, list[Completion]], asked: list[Question]) -> Row:
    from simsd.evaluation.graders import grade

    found = answers[way]
    ordinary = answers["none", way[1]]
    drafted = sum(completion.stats.drafted_tokens for completion in found)
    accepted = sum(completion.stats.accepted_tokens for completion in found)
    speed = _tokens_per_second(found)
    right = [grade(question, completion.text) for question, completion in zip(asked, found, strict=True)]
    same = [one.text == other.text for one, other in zip(found, ordinary, strict=True)]
    return Row(
        method=way[0],
        schedule=way[1],
        tokens_per_second=speed,
        ratio_to_static=speed / _tokens_per_second(answers["none", "static"]),
        tokens_per_forward=_tokens(found) / max(1, sum(completion.stats.target_forwards for completion in found)),
        acceptance_rate=accepted / drafted if drafted else None,
        accuracy=sum(right) / len(right),
        same_text=sum(same) / len(same),
    )


def _tokens(completions: list[Completion]) -> int:
    return sum(completion.stats.tokens for completion in completions)


def _tokens_per_second(completions: list[Completion]) -> float:
    seconds = sum(completion.stats.seconds - completion.stats.prefill_seconds for completion in completions)
    return _tokens(completions) / max(seconds, 1e-9)


def _introduce(question: Question, answers: dict[Way, Completion], out: Console) -> None:
    """One answer, and what it cost with and without drafts."""
    exact, ordinary = answers["exact", "dynamic"], answers["none", "static"]
    same = answers["exact", "dynamic"].text == answers["none", "dynamic"].text
    out.print("A block-diffusion model fills blocks of masked tokens; a small model drafts, the large one verifies.\n")
    out.print(f"Question  {question.question}", style="bold", markup=False)
    out.print(f"Answer    {exact.text}", markup=False)
    out.print(
        f"{exact.stats.tokens} tokens in {exact.stats.target_forwards} forwards of the target"
        f"{', the same text as without drafts' if same else ''}; "
        f"ordinary decoding takes {ordinary.stats.target_forwards}.\n",
        style="dim",
        markup=False,
    )


def _with_progress(asked: list[Question]) -> Iterator[Question]:
    from rich.progress import track

    return iter(track(asked, "Measuring", console=common.console(stderr=True), transient=True))


def _table(rows: list[Row], questions: int) -> Table:
    from rich.table import Table

    table = Table(title=f"{questions} questions, block length {BLOCK_LENGTH}", title_justify="left", title_style="bold")
    table.add_column("schedule")
    table.add_column("method")
    for name in ("tokens/s", "ratio", "tokens per\nforward", "accepted", "right", "same\ntext"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            *_cells(row), end_section=row.method == METHODS[-1], style="bold" if row.method == "exact" else ""
        )
    return table


def _cells(row: Row) -> list[Any]:
    return [
        row.schedule,
        row.method,
        f"{row.tokens_per_second:.0f}",
        f"{row.ratio_to_static:.2f}x",
        f"{row.tokens_per_forward:.2f}",
        "-" if row.acceptance_rate is None else f"{row.acceptance_rate:.0%}",
        f"{row.accuracy:.0%}",
        f"{row.same_text:.0%}",
    ]
