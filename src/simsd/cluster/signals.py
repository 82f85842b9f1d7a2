"""SIGINT and SIGTERM: the first asks to end, and another one means at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Ending:
    """Whether a signal has asked to end. Until `ready` there is nothing to finish, and it interrupts."""

    def __init__(self) -> None:
        self.ready = False
        self.asked = threading.Event()
        self.signal: int | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        if not self.ready or self.asked.is_set():
            raise KeyboardInterrupt
        self.signal = number
        self.asked.set()


@contextmanager
def caught() -> Iterator[Ending]:
    """Handles both signals meanwhile; what was asked for then happens to the process at the end, as it would have."""
    ending = Ending()
    before = {number: signal.signal(number, ending.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if ending.signal is not None:
        signal.raise_signal(ending.signal)
