"""The measurement: all cells on the same prompts, interleaved: what slows the machine slows none of them alone."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from simsd.benchmark.cell import Cell
from simsd.benchmark.journal import Journal
from simsd.benchmark.memory import Peaks
from simsd.benchmark.sample import Place, Sample, answer, growth
from simsd.benchmark.workload import Item, ask, lengths
from simsd.errors import ConfigError
from simsd.evaluation.graders import grade
from simsd.llm import LLM, Completion, SamplingParams


@dataclass(frozen=True)
class Settings:
    """What all cells share.

    repeats: how often every prompt is decoded by every cell; each repeat has its own seeds.
    batch_size: sequences side by side. 1 decodes one prompt after another; more use continuous batching.
    """

    max_tokens: int = 256
    repeats: int = 3
    batch_size: int = 1
    seed: int = 0
    top_k: int = 0
    top_p: float = 1.0
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name in ("max_tokens", "repeats", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}; it must be at least 0")

    def params(self, cell: Cell, repeat: int, index: int) -> SamplingParams:
        """Of prompt `index`: the same seed for every cell, so that exact cells must give the same text."""
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=cell.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=(self.seed + repeat) * 1_000_003 + index,
            ignore_eos=self.ignore_eos,
        )

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def groups(count: int, batch_size: int) -> list[range]:
    """Which prompts are decoded in one call: one each, or all, since a batch is refilled as its sequences end."""
    return [range(at, at + 1) for at in range(count)] if batch_size == 1 else [range(count)]


def places(cells: Sequence[Cell], items: Sequence[Item], settings: Settings) -> dict[Place, tuple[bool, ...]]:
    """All samples of a whole run, with which of its answers are graded."""
    graded = [tuple(items[at].question is not None for at in part) for part in groups(len(items), settings.batch_size)]
    return {
        (cell.key, repeat, group): one
        for cell in cells
        for repeat in range(settings.repeats)
        for group, one in enumerate(graded)
    }


def measure(
    base: LLM,
    cells: Sequence[Cell],
    items: Sequence[Item],
    settings: Settings,
    journal: Journal,
    advance: Callable[[int], None] = lambda n: None,
) -> None:
    """Adds to the journal what it lacks. advance: called with the number of samples done.

    Every cell decodes a group before any decodes the next one; the cell that begins changes in turn.
    Raises PromptError before anything is measured; ConfigError; NumericalError.
    """
    longest = sorted(range(len(items)), key=lengths(base, items).__getitem__, reverse=True)[: settings.batch_size]
    parts = groups(len(items), settings.batch_size)
    done = journal.places
    bench = _Bench(items, settings, Peaks(base.device))
    llms: dict[Cell, LLM] = {}
    for cell in cells:
        places = {(cell.key, repeat, number) for repeat in range(settings.repeats) for number in range(len(parts))}
        if not places <= done:
            llms[cell] = bench.warmed(base, cell, longest)
    for repeat in range(settings.repeats):
        for number, part in enumerate(parts):
            first = (repeat * len(parts) + number) % len(cells)
            for cell in [*cells[first:], *cells[:first]]:
                if (cell.key, repeat, number) not in done:
                    journal.add(bench.sample(llms[cell], cell, repeat, number, part))
                advance(1)


@dataclass
class _Bench:
    """What all samples of a run share. right: the grade of each text of an item, found once: cells often give the same
    text, and code answers start a process each."""

    items: Sequence[Item]
    settings: Settings
    peaks: Peaks
    right: dict[tuple[int, str], bool] = field(default_factory=dict)

    def warmed(self, base: LLM, cell: Cell, longest: Sequence[int]) -> LLM:
        """The cell's engine after the prompts that need the most room: caches have grown, kernels are chosen."""
        self.peaks.begin()
        # without prefix caching, which would leave the prefill of all repeats but the first to nothing
        llm = base.with_options(**cell.decoding, max_num_seqs=self.settings.batch_size, prefix_caching=False)
        self._decode(llm, cell, 0, longest)
        self.peaks.end(cell.key)
        return llm

    def sample(self, llm: LLM, cell: Cell, repeat: int, number: int, part: Sequence[int]) -> Sample:
        gc.collect(0)  # not inside the time that is measured
        self.peaks.begin()
        before = llm.totals
        completions = self._decode(llm, cell, repeat, part)
        cost = growth(before, llm.totals)
        peak = self.peaks.end(cell.key)
        answers = [answer(c, self._right(index, c.text)) for index, c in zip(part, completions, strict=True)]
        return Sample(cell.key, repeat, number, answers, cost, peak)

    def _decode(self, llm: LLM, cell: Cell, repeat: int, part: Sequence[int]) -> list[Completion]:
        params = [self.settings.params(cell, repeat, index) for index in part]
        completions = ask(llm, [self.items[index] for index in part], params)
        for completion in completions:
            if completion.error is not None:
                raise completion.error
        return completions

    def _right(self, index: int, text: str) -> bool | None:
        question = self.items[index].question
        if question is None:
            return None
        if (index, text) not in self.right:
            self.right[index, text] = grade(question, text)
        return self.right[index, text]
