"""The measurement: all cells on the same prompts, interleaved: what slows the machine slows none of them alone."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from simsd.benchmark.cell import Cell
from simsd.benchmark.journal import Journal
from simsd.benchmark.memory import peak_bytes, reset_peak
from simsd.benchmark.sample import Sample, answer, growth
from simsd.benchmark.workload import Item, ask
from simsd.errors import ConfigError
from simsd.evaluation.graders import grade
from simsd.llm import LLM, Completion, SamplingParams


@dataclass(frozen=True)
class Settings:
    """What all cells share.

    repeats: how often every prompt is decoded by every cell; each repeat has its own seeds.
    batch_size: sequences side by side. 1 decodes one prompt after another; more use continuous batching.
    """

    max_tokens: int = 128
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
    """
    parts = groups(len(items), settings.batch_size)
    done = journal.places
    left = {cell for cell in cells for place in _places(cell, settings, parts) if place not in done}
    llms = {
        cell: base.with_options(**cell.decoding, max_num_seqs=settings.batch_size) for cell in cells if cell in left
    }
    right: dict[tuple[int, str], bool] = {}
    for cell, llm in llms.items():  # warm-up: caches are touched, kernels chosen
        _decode(llm, cell, items, parts[0][:1], settings, 0)
    for repeat in range(settings.repeats):
        for number, part in enumerate(parts):
            first = (repeat + number) % len(cells)
            for cell in [*cells[first:], *cells[:first]]:
                if (cell.key, repeat, number) not in done:
                    journal.add(_sample(llms[cell], cell, items, part, settings, (repeat, number), right))
                advance(1)


def count(cells: Sequence[Cell], items: Sequence[Item], settings: Settings) -> int:
    """Samples of a whole run."""
    return len(cells) * settings.repeats * len(groups(len(items), settings.batch_size))


def _places(cell: Cell, settings: Settings, parts: Sequence[range]) -> list[tuple[str, int, int]]:
    return [(cell.key, repeat, number) for repeat in range(settings.repeats) for number in range(len(parts))]


def _decode(
    llm: LLM, cell: Cell, items: Sequence[Item], part: range, settings: Settings, repeat: int
) -> list[Completion]:
    params = [settings.params(cell, repeat, index) for index in part]
    completions = ask(llm, [items[index] for index in part], params)
    for completion in completions:
        if completion.error is not None:
            raise completion.error
    return completions


def _sample(
    llm: LLM,
    cell: Cell,
    items: Sequence[Item],
    part: range,
    settings: Settings,
    place: tuple[int, int],
    right: dict[tuple[int, str], bool],
) -> Sample:
    repeat, number = place
    gc.collect(0)  # not inside the time that is measured
    reset_peak(llm.device)
    before = llm.totals
    completions = _decode(llm, cell, items, part, settings, repeat)
    cost = growth(before, llm.totals)
    peak = peak_bytes(llm.device)
    answers = [
        answer(completion, _right(items[index], index, completion.text, right))
        for index, completion in zip(part, completions, strict=True)
    ]
    return Sample(cell.key, repeat, number, answers, cost, peak)


def _right(item: Item, index: int, text: str, known: dict[tuple[int, str], bool]) -> bool | None:
    """Graded once for each text: cells often give the same one, and code answers start a process each."""
    if item.question is None:
        return None
    if (index, text) not in known:
        known[index, text] = grade(item.question, text)
    return known[index, text]
