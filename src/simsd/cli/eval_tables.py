"""What `simsd eval` shows: its results, whole or interrupted, as tables or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from simsd.text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from simsd.evaluation.accuracy import Accuracy
    from simsd.evaluation.harness_run import TaskRun
    from simsd.llm import LLM


@dataclass
class Found:
    """The results so far. asked: questions of each suite; tasks: names that were given."""

    asked: dict[str, int]
    tasks: list[str]
    llm: LLM | None = None
    suites: list[Accuracy] = field(default_factory=list)
    run: TaskRun | None = None
    interrupted: bool = False

    @property
    def begun(self) -> bool:
        """True if something was answered."""
        return any(result.questions for result in self.suites) or (self.run is not None and self.run.answered > 0)

    @property
    def interruption(self) -> str:
        """How far an interrupted run has come."""
        parts = []
        if self.asked:
            done = sum(result.questions for result in self.suites)
            parts.append(f"{done} of {sum(self.asked.values())} questions")
        if self.run is not None:
            parts.append(f"{self.run.answered} of {self.run.asked} texts of the tasks, which are not graded")
        elif self.tasks:
            parts.append("none of the tasks")
        return f"interrupted after {' and '.join(parts)}"

    @property
    def failures(self) -> list[str]:
        """A sentence for each suite with questions that could not be answered, and for the tasks."""
        counts = [(one.suite, one.failed, one.questions, one.failure) for one in self.suites]
        if self.run is not None:
            counts.append(("the tasks", self.run.failed, self.run.answered, self.run.failure))
        return [
            f"{name}: {failed} of {total} questions could not be answered; the first: {reason}"
            for name, failed, total, reason in counts
            if failed
        ]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "options": None if self.llm is None else asdict(self.llm.options),
            "suites": [result.to_dict() for result in self.suites],
            "harness": None if self.run is None else _run_dict(self.run),
            "interrupted": self.interrupted,
        }


def _run_dict(run: TaskRun) -> dict[str, Any]:
    counts = {"asked": run.asked, "answered": run.answered, "failed": run.failed, "failure": run.failure}
    return {"tasks": [asdict(result) for result in run.results], **counts, **run.cost.to_dict()}


def show(found: Found, out: Console) -> None:
    """Prints the tables."""
    if found.suites:
        out.print(_suite_table(found.suites, f"Suites, {found.interruption}" if found.interrupted else "Suites"))
        ends = "; ".join(f"{result.suite}: {result.cost.endings}" for result in found.suites)
        out.print(printable(ends), style="dim", markup=False)
    if found.run is not None:
        if found.run.results:
            out.print(_task_table(found.run))
        out.print(f"Generated text: {found.run.cost}.", style="dim", markup=False)


def _table(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    """Where there is little room, the first name gives way and not the numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    table.add_column(names[0], overflow="fold", vertical="bottom")
    for name in names[1:]:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _suite_table(results: Sequence[Accuracy], title: str) -> Table:
    from rich.text import Text

    columns = ("right", "accuracy (95 %)", "tokens per\nforward", "drafts\naccepted", "tokens/s")
    table = _table(title, ["suite"], columns)
    for result in results:
        low, high = result.interval
        table.add_row(
            Text(printable(result.suite)),
            f"{result.right} of {result.questions}" + (f"\n{result.asked} asked" if result.partial else ""),
            f"{result.accuracy:.1%} ({low:.1%} - {high:.1%})" if result.questions else "-",
            f"{result.cost.stats.tokens_per_forward:.2f}" if result.questions else "-",
            result.cost.acceptance,
            # the seconds of an interrupted suite hold those of texts that were not finished
            "-" if result.partial else f"{result.cost.stats.tokens_per_second:.0f}",
        )
    return table


def _task_table(run: TaskRun) -> Table:
    from rich.text import Text

    table = _table("Tasks", ["task"], ["questions", "shots"])
    for name in ("metric", "filter"):
        table.add_column(name, overflow="fold")
    for name in ("value", "standard\nerror"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in run.results:
        for key, value in result.metrics.items():
            metric, _, kept = key.partition(",")
            if metric.endswith("_stderr"):
                continue
            error = result.metrics.get(f"{metric}_stderr,{kept}")
            names = [Text(printable(name)) for name in (result.task, metric, kept)]
            table.add_row(
                names[0], str(result.questions), str(result.num_fewshot), *names[1:], _number(value), _number(error)
            )
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
