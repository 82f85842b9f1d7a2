"""One way to decode, as a cell of a matrix; and the matrix itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simsd.engine.options import DecodingOptions, SamplingParams
from simsd.errors import ConfigError

SCHEDULES = {"static": "low_confidence_static", "dynamic": "low_confidence_dynamic"}

# Options that say nothing about ordinary decoding, which has no draft.
SPECULATIVE = ("layout", "acceptance", "drafter", "states", "num_speculative_tokens", "draft_steps", "position_copy")

# Options that say nothing on other schedules than this one.
SCHEDULE_OF = {"confidence_threshold": SCHEDULES["dynamic"], "eb_threshold": "entropy_bounded"}


def matters(name: str, method: str, schedule: str) -> bool:
    """True if the option says something about this method on this schedule."""
    return (method != "none" or name not in SPECULATIVE) and SCHEDULE_OF.get(name, schedule) == schedule


@dataclass(frozen=True)
class Cell:
    """A method on a schedule at a block length (None: the checkpoint's) and a temperature.

    options: further `DecodingOptions`, as sorted pairs, so that equal cells are equal.
    """

    method: str
    schedule: str = "low_confidence_static"
    block_length: int | None = None
    temperature: float = 0.0
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, method: str, schedule: str, options: Mapping[str, Any], **more: Any) -> Cell:
        """A cell with those options that are not None and mean something for its method and schedule."""
        kept = {name: value for name, value in options.items() if value is not None and matters(name, method, schedule)}
        return cls(method, schedule, options=tuple(sorted(kept.items())), **more)

    @property
    def decoding(self) -> dict[str, Any]:
        """Keyword arguments of `LLM.with_options`."""
        length = {} if self.block_length is None else {"block_length": self.block_length}
        return {"method": self.method, "remasking_strategy": self.schedule} | length | dict(self.options)

    @property
    def baseline(self) -> Cell:
        """Ordinary decoding on the same schedule: what an exact method must repeat."""
        return self.ordinary(self.schedule)

    @property
    def static(self) -> Cell:
        """Ordinary decoding on the static schedule: what speed is compared with."""
        return self.ordinary(SCHEDULES["static"])

    def ordinary(self, schedule: str) -> Cell:
        """Ordinary decoding in this place of the matrix."""
        length, temperature = self.block_length, self.temperature
        return Cell.of("none", schedule, dict(self.options), block_length=length, temperature=temperature)

    @property
    def degrees(self) -> str:
        """The temperature as text: short where that is exact, and never the same for two."""
        value = self.temperature + 0.0  # there is one zero
        short = f"{value:g}"
        return short if float(short) == value else repr(value)

    @property
    def key(self) -> str:
        """Equal for equal cells and for them alone; stable from run to run."""
        parts = [self.method, self.schedule, f"B={self.block_length or 'own'}", f"T={self.degrees}"]
        return " ".join([*parts, *(f"{name}={value}" for name, value in self.options)])

    @property
    def label(self) -> str:
        """The method with the options that set it apart, for tables and legends."""
        return " ".join([self.method, *(f"{SHORT.get(name, name)}={value}" for name, value in self.options)])

    @property
    def schedule_name(self) -> str:
        """The short name of the two common schedules, else the name."""
        return {name: short for short, name in SCHEDULES.items()}.get(self.schedule, self.schedule)

    @property
    def place(self) -> tuple[str, int | None, float]:
        """Where in the matrix it stands: cells of one place differ in method and options."""
        return self.schedule, self.block_length, self.temperature

    @property
    def place_name(self) -> str:
        """The place for people, such as "static, B = 8, T = 0"."""
        length = "" if self.block_length is None else f", B = {self.block_length}"
        return f"{self.schedule_name}{length}, T = {self.degrees}"


# Names of options where there is little room.
SHORT = {
    "num_speculative_tokens": "window",
    "confidence_threshold": "threshold",
    "position_copy": "position-copy",
    "draft_steps": "draft-steps",
    "denoising_steps": "steps",
}


def shared(cells: Sequence[Cell]) -> dict[str, Any]:
    """The options that say the same of all cells for which they mean something."""
    values: dict[str, set[Any]] = {}
    for name in sorted({name for cell in cells for name, _ in cell.options}):
        values[name] = {dict(c.options).get(name) for c in cells if matters(name, c.method, c.schedule)}
    return {name: next(iter(found)) for name, found in values.items() if len(found) == 1}


def labels(cells: Sequence[Cell]) -> dict[Cell, str]:
    """The label of each cell, without the `shared` options."""
    common = shared(cells)
    return {c: replace(c, options=tuple(o for o in c.options if o[0] not in common)).label for c in cells}


def matrix(
    methods: Sequence[str],
    *,
    schedules: Sequence[str] = tuple(SCHEDULES.values()),
    block_lengths: Sequence[int | None] = (None,),
    temperatures: Sequence[float] = (0.0,),
    vary: Mapping[str, Sequence[Any]] | None = None,
    fixed: Mapping[str, Any] | None = None,
) -> list[Cell]:
    """All combinations, each once, ordinary decoding on both common schedules always among them and first.

    vary: options with the values to try, such as {"num_speculative_tokens": [4, 8]}; fixed: options of all cells.
    """
    vary, fixed = vary or {}, fixed or {}
    choices = [dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())]
    ways = [("none", schedule) for schedule in SCHEDULES.values()] + list(itertools.product(methods, schedules))
    return with_baselines(
        Cell.of(method, schedule, {**fixed, **chosen}, block_length=length, temperature=temperature)
        for temperature, length in itertools.product(temperatures, block_lengths)
        for (method, schedule), chosen in itertools.product(ways, choices)
    )


def with_baselines(cells: Iterable[Cell]) -> list[Cell]:
    """The cells, each once, and the ordinary decoding that they are compared with.

    Cells of one place stand together, ordinary decoding first; so do the places of a temperature and block length.
    """
    cells = list(cells)
    compared = [ordinary for cell in cells for ordinary in (cell.static, cell.baseline)]
    # a cell on another schedule does not say how the dynamic one was set up: it is asked for that only if no other is
    known = {cell.place for cell in [*cells, *compared] if cell.method == "none"}
    dynamic = [cell.ordinary(SCHEDULES["dynamic"]) for cell in cells]
    found = list(dict.fromkeys([*compared, *(cell for cell in dynamic if cell.place not in known), *cells]))
    schedules = list(dict.fromkeys([*SCHEDULES.values(), *(cell.schedule for cell in cells)]))
    levels = list(dict.fromkeys(cell.place[1:] for cell in found))
    return sorted(
        found, key=lambda cell: (levels.index(cell.place[1:]), schedules.index(cell.schedule), cell.method != "none")
    )


def check(cells: Iterable[Cell], has_draft_model: bool, block_length: int) -> None:
    """Refuses cells that cannot be decoded, before any is. Raises ConfigError naming the cell."""
    for cell in cells:
        try:
            given: dict[str, Any] = {"block_length": block_length} | cell.decoding
            options = DecodingOptions(**given).resolve(has_draft_model)
            SamplingParams(temperature=cell.temperature).resolve(options, 0)
        except (TypeError, ConfigError) as error:
            raise ConfigError(f"cell '{cell.key}': {error}") from None
        if options.drafter == "trajectory" and cell.method != "none":
            raise ConfigError(f"cell '{cell.key}': drafter 'trajectory' needs recorded decodings; choose another")
