"""The paper's ablations by name: what each one varies, and which ways to decode it follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simsd.benchmark.cell import SCHEDULES, Cell, with_baselines
from simsd.engine.options import choose
from simsd.errors import ConfigError

Value = int | float | str


@dataclass(frozen=True)
class Curve:
    """A way to decode that a recipe follows along its axis.

    varies: False for a reference that the axis leaves alone. name: for legends, if other than the method's.
    """

    method: str
    schedule: str = "static"
    varies: bool = True
    name: str = ""

    @property
    def label(self) -> str:
        return f"{self.name or self.method}, {self.schedule}"


@dataclass(frozen=True)
class Recipe:
    """One ablation.

    question: what it answers. axis: what varies, for people. values: those tried if none are given.
    option: the `DecodingOptions` field that a value sets; read: its value there, from a value of the axis.
    ordered: values are sizes, to be joined by a line; else they are alternatives, which stand side by side.
    choices: all values there are, where they can be listed. drafting: those that need a draft model.
    one_block: the window is a block, unless it is given. Layouts have different windows of their own.
    """

    name: str
    title: str
    question: str
    axis: str
    values: tuple[Value, ...]
    option: str
    curves: tuple[Curve, ...]
    read: Callable[[Any], Any] = lambda value: value
    ordered: bool = True
    choices: tuple[str, ...] = ()
    drafting: tuple[Value, ...] = ()
    one_block: bool = False

    def cell(self, curve: Curve, value: Value, fixed: Mapping[str, Any], temperature: float = 0.0) -> Cell:
        """Where the curve is at a value. fixed: options of all cells, "block_length" among them."""
        options = dict(fixed)
        if self.one_block:
            options.setdefault("num_speculative_tokens", fixed["block_length"])
        if curve.varies:
            options[self.option] = self.read(value)
        block_length = options.pop("block_length")
        schedule = SCHEDULES[curve.schedule]
        return Cell.of(curve.method, schedule, options, block_length=block_length, temperature=temperature)

    def cells(self, values: Sequence[Value], fixed: Mapping[str, Any], temperature: float = 0.0) -> list[Cell]:
        """All cells, each once; ordinary decoding on both schedules always among them and first."""
        drafts = [curve for curve in self.curves if curve.method != "none"]
        return with_baselines(self.cell(curve, value, fixed, temperature) for curve in drafts for value in values)

    def default_values(self, has_draft_model: bool) -> tuple[Value, ...]:
        """The values that can be tried with or without a draft model."""
        return tuple(value for value in self.values if has_draft_model or value not in self.drafting)

    def parse(self, word: str) -> Value:
        """A value from text. Raises ConfigError."""
        if self.choices:
            return choose(f"value of {self.name!r}", word, self.choices)
        try:
            return type(self.values[0])(word)
        except ValueError:
            example = ",".join(map(str, self.values[:3]))
            raise ConfigError(f"value of {self.name!r} is {word!r}; give numbers such as {example}") from None


ORDINARY = (Curve("none"), Curve("none", "dynamic"))

_ALL = (
    Recipe(
        name="gamma",
        title="Draft window",
        question="How many tokens should a round draft?",
        axis="window: most tokens drafted in a round",
        values=tuple(range(1, 17)),
        option="num_speculative_tokens",
        curves=(*ORDINARY, Curve("simsd"), Curve("exact-draft-order"), Curve("exact"), Curve("exact", "dynamic")),
    ),
    Recipe(
        name="block-length",
        title="Block length",
        question="What do longer blocks cost in accuracy, and gain in speed?",
        axis="block length",
        values=(4, 8, 16),
        option="block_length",
        curves=(
            *ORDINARY,
            *(Curve("simsd", schedule) for schedule in SCHEDULES),
            Curve("exact-draft-order"),
            *(Curve("exact", schedule) for schedule in SCHEDULES),
        ),
    ),
    Recipe(
        name="position-copy",
        title="Position copy",
        question="Must a mask slot have the position of the token that it judges?",
        axis="position copy",
        values=("on", "off"),
        option="position_copy",
        read=lambda value: value == "on",
        curves=(*ORDINARY, *(Curve("simsd", schedule) for schedule in SCHEDULES)),
        ordered=False,
        choices=("on", "off"),
    ),
    Recipe(
        name="layout",
        title="Layout",
        question="What does the paired layout lose against whole states, under the same acceptance rule?",
        axis="layout of the check",
        values=("paired", "unrolled"),
        option="layout",
        curves=(
            *ORDINARY,
            *(Curve("simsd", schedule, name="draft order") for schedule in SCHEDULES),
            *(Curve("exact", schedule, varies=False) for schedule in SCHEDULES),
        ),
        ordered=False,
        choices=("paired", "unrolled"),
        one_block=True,
    ),
    Recipe(
        name="drafter",
        title="Drafter",
        question="Who should guess?",
        axis="source of the draft",
        values=("model", "hybrid", "self", "lookup"),
        option="drafter",
        curves=(*ORDINARY, Curve("simsd"), Curve("exact"), Curve("exact", "dynamic")),
        ordered=False,
        choices=("model", "hybrid", "self", "lookup"),
        drafting=("model", "hybrid"),
    ),
    Recipe(
        name="threshold",
        title="Confidence threshold",
        question="How sure must a model be to reveal several tokens in a step, and what can a draft still add?",
        axis="confidence threshold of the dynamic schedule",
        values=(0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99),
        option="confidence_threshold",
        curves=(*ORDINARY, Curve("simsd", "dynamic"), Curve("exact", "dynamic")),
    ),
)

RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in _ALL}
