"""Errors that a user can act on: each says what was wrong, with the value, and what to do."""

from __future__ import annotations

from collections.abc import Callable


class SimsdError(Exception):
    """Base of all errors raised on purpose; the command line turns it into exit code 2."""


class ModelError(SimsdError):
    """A checkpoint that cannot be used: unknown type, missing files, weights that do not fit."""


class FitError(ModelError):
    """Models that do not fit into the memory there is.

    ways: options that would help, each with the value to give it, None where a smaller one would; with several that
    only help together, `together` is True.
    """

    def __init__(self, told: str, *ways: tuple[str, str | None], together: bool = False) -> None:
        self.told, self.ways, self.together = told, ways, together
        super().__init__(self.advise(lambda name, value: f"{name}={value!r}" if value else f"a smaller {name}"))

    def advise(self, spelled: Callable[[str, str | None], str]) -> str:
        """The whole message; spelled: an option as its reader would type it."""
        named = [spelled(name, value) for name, value in self.ways]
        if self.together and named:
            named = [" together with ".join(named)]
        ways = [*named, "a smaller model"]
        return f"{self.told}; use {' or '.join((', '.join(ways)).rsplit(', ', 1))}."


class PairError(ModelError):
    """A draft model that cannot draft for the target: other vocabulary, MASK id or block length."""


class ConfigError(SimsdError, ValueError):
    """A decoding option that is out of range or contradicts another one.

    option: its name, where one is to blame; the message begins with it.
    """

    def __init__(self, message: str, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


class PromptError(SimsdError, ValueError):
    """A prompt that cannot be decoded: empty, too long, or not text."""


class LongPromptError(PromptError):
    """A prompt that leaves no room for an answer. told: what is wrong and how long it may be, without advice."""

    def __init__(self, told: str, advice: str) -> None:
        super().__init__(f"{told}; {advice}")
        self.told = told


class NumericalError(SimsdError, ArithmeticError):
    """Logits that are not numbers; the request that met them fails alone."""


class RoomError(SimsdError, MemoryError):
    """A request for which there is not enough memory beside the others; it fails alone."""


class WorkerError(SimsdError):
    """A process of tensor parallelism that failed or ended; nothing can be decoded with the others."""
