"""Errors that a user can act on: each says what was wrong, with the value, and what to do."""

from __future__ import annotations


class SimsdError(Exception):
    """Base of all errors raised on purpose; the command line turns it into exit code 2."""


class ModelError(SimsdError):
    """A checkpoint that cannot be used: unknown type, missing files, weights that do not fit."""


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


class WorkerError(SimsdError):
    """A process of tensor parallelism that failed or ended; nothing can be decoded with the others."""
