"""From samples to one row a cell: speed with its spread, what a forward gives, and whether the text is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from simsd.benchmark.cell import Cell
from simsd.benchmark.sample import Answer, Sample
from simsd.evaluation.statistics import Spread, mcnemar, wilson

SPREADS = ("tokens_per_second", "ratio_to_static", "ratio_to_schedule")  # figures of a row that are spreads


@dataclass(frozen=True)
class Row:
    """One cell of a report. Rates are None where there is nothing to count; seconds exclude prefill unless named so.

    tokens_per_second, ratio_to_static, ratio_to_schedule: over repeats. The ratios compare with ordinary decoding on
    the static schedule, and on the cell's own, within the same repeat; None where that gave no token or took no time.
    accuracy_interval: 95 %, Wilson, counting questions (not repeats) as trials.
    seconds: of a repeat, on average, by part; tokens, query_tokens (rows of the target's forwards), prefill_tokens and
    target_forwards likewise.
    peak_bytes: as `memory` measures it; the most of all samples.
    same_text: share of answers whose ids are those of ordinary decoding on the same schedule with the same seed.
    lost, gained: answers right in ordinary decoding only, and here only; p_value: exact McNemar test of the two.
    """

    cell: Cell
    prompts: int
    tokens: float
    query_tokens: float
    prefill_tokens: float
    target_forwards: float
    seconds: dict[str, float]
    tokens_per_second: Spread | None
    ratio_to_static: Spread | None
    ratio_to_schedule: Spread | None
    tokens_per_forward: float
    query_tokens_per_forward: float
    draft_forwards_per_forward: float
    acceptance_rate: float | None
    ms_per_forward: dict[str, float]
    prefill_tokens_per_second: float | None
    peak_bytes: int
    accuracy: float | None
    accuracy_interval: tuple[float, float] | None
    same_text: float
    lost: int | None
    gained: int | None
    p_value: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: the cell's fields beside the others."""
        data = asdict(self)
        cell = data.pop("cell")
        cell["options"] = dict(self.cell.options)
        return {"cell": self.cell.key, "label": self.cell.label, **cell, **data}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Row:
        """The row that `to_dict` wrote."""
        own = {field.name: data[field.name] for field in fields(cls) if field.name != "cell"}
        place = {name: data[name] for name in ("method", "schedule", "block_length", "temperature")}
        spreads = {name: None if own[name] is None else Spread(**own[name]) for name in SPREADS}
        interval = own["accuracy_interval"]
        own |= spreads | {"accuracy_interval": None if interval is None else tuple(interval)}
        return cls(cell=Cell(**place, options=tuple(sorted(data["options"].items()))), **own)


def summarise(cells: Sequence[Cell], samples: Sequence[Sample], groups: int) -> list[Row]:
    """A row for each cell, in order. Only repeats that every cell has finished count, so that ratios compare like with
    like.

    groups: samples that a cell has in a finished repeat. Raises ValueError where not even one repeat is finished.
    """
    table: dict[str, dict[int, dict[int, Sample]]] = {}
    for sample in samples:
        table.setdefault(sample.cell, {}).setdefault(sample.repeat, {})[sample.group] = sample
    finished = set.intersection(
        *({r for r, found in table.get(cell.key, {}).items() if len(found) == groups} for cell in cells)
    )
    if not finished:
        raise ValueError("no repeat is finished for all cells")
    runs = {
        cell: [[table[cell.key][r][g] for g in sorted(table[cell.key][r])] for r in sorted(finished)] for cell in cells
    }
    return [_row(cell, runs) for cell in cells]


def _row(cell: Cell, runs: dict[Cell, list[list[Sample]]]) -> Row:
    own = runs[cell]
    repeats = len(own)
    flat = [sample for repeat in own for sample in repeat]

    def total(name: str) -> float:
        return sum(sample.cost[name] for sample in flat)

    forwards, tokens = max(total("target_forwards"), 1), _tokens(flat)
    drafted, prefill = total("drafted_tokens"), total("prefill_seconds")
    answers, ordinary = _answers(own), _answers(runs[cell.baseline])
    right = [answer.right for answer in answers if answer.right is not None]
    accuracy = sum(right) / len(right) if right else None
    questions = len(right) // repeats
    lost, gained = _changed(own, runs[cell.baseline], cell.temperature)
    graded = accuracy is not None
    return Row(
        cell=cell,
        prompts=len(answers) // repeats,
        tokens=tokens / repeats,
        query_tokens=total("query_tokens") / repeats,
        prefill_tokens=total("prefill_tokens") / repeats,
        target_forwards=total("target_forwards") / repeats,
        seconds={part: total(f"{part}_seconds") / repeats for part in ("prefill", "draft", "verify", "accept")},
        tokens_per_second=_spread(_speeds(own)),
        ratio_to_static=_ratio(own, runs[cell.static]),
        ratio_to_schedule=_ratio(own, runs[cell.baseline]),
        tokens_per_forward=tokens / forwards,
        query_tokens_per_forward=total("query_tokens") / forwards,
        draft_forwards_per_forward=total("draft_forwards") / forwards,
        acceptance_rate=total("accepted_tokens") / drafted if drafted else None,
        ms_per_forward={part: total(f"{part}_seconds") / forwards * 1e3 for part in ("draft", "verify", "accept")},
        prefill_tokens_per_second=total("prefill_tokens") / prefill if prefill else None,
        peak_bytes=max(sample.peak_bytes for sample in flat),
        accuracy=accuracy,
        accuracy_interval=wilson(accuracy, questions) if accuracy is not None else None,
        same_text=sum(a.text == b.text for a, b in zip(answers, ordinary, strict=True)) / len(answers),
        lost=lost if graded else None,
        gained=gained if graded else None,
        p_value=mcnemar(lost, gained) if graded else None,
    )


def _tokens(samples: Sequence[Sample]) -> int:
    """Of the final ids, the same way for every cell."""
    return sum(answer.tokens for sample in samples for answer in sample.answers)


def _answers(repeats: Sequence[Sequence[Sample]]) -> list[Answer]:
    return [answer for repeat in repeats for sample in repeat for answer in sample.answers]


def _speeds(repeats: Sequence[Sequence[Sample]]) -> list[float | None]:
    """Tokens per second of each repeat, prefill apart; None where no time went by."""
    speeds = []
    for repeat in repeats:
        seconds = sum(sample.cost["seconds"] - sample.cost["prefill_seconds"] for sample in repeat)
        speeds.append(_tokens(repeat) / seconds if seconds > 0 else None)
    return speeds


def _ratio(own: Sequence[Sequence[Sample]], other: Sequence[Sequence[Sample]]) -> Spread | None:
    pairs = zip(_speeds(own), _speeds(other), strict=True)
    return _spread([a / b if a is not None and b else None for a, b in pairs])


def _spread(values: Sequence[float | None]) -> Spread | None:
    """Of those that there are; None where there is none."""
    known = [value for value in values if value is not None]
    return Spread.of(known) if known else None


def _changed(own: Sequence[Sequence[Sample]], other: Sequence[Sequence[Sample]], temperature: float) -> tuple[int, int]:
    """Answers that only `other` and only `own` has right. Greedy repeats are copies of each other and count once."""
    if temperature == 0:
        own, other = own[:1], other[:1]
    pairs = [(a.right, b.right) for a, b in zip(_answers(own), _answers(other), strict=True)]
    return pairs.count((False, True)), pairs.count((True, False))
