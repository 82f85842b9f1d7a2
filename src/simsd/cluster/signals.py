"""SIGINT and SIGTERM: the first asks to end, and another one means at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Ending:
    """Which signal has asked to end, if one has. Until `ready` there is nothing to finish, and it interrupts."""

    def __init__(self) -> None:
        self.ready = False
        self.signal: int | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        if not self.ready or self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def caught() -> Iterator[Ending]:
    """Handles both signals meanwhile; the one that came then does to the process what it would have done."""
    ending = Ending()
    before = {number: signal.signal(number, ending.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if ending.signal is not None:
        signal.raise_signal(ending.signal)
