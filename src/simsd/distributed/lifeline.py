"""The end of a worker with the process that started it, whatever the worker is doing. Loads nothing heavy."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress

LOST = 3  # exit code of a rank that ends because another one did
_PR_SET_PDEATHSIG = 1  # of Linux' prctl


def end_with_parent() -> None:
    """Linux ends this process with the *thread* that started it, even where it is stopped, as by Ctrl-Z.

    Elsewhere it looks every second whether its parent is there: it may wait in a collective on a GPU for ever.
    """
    parent = os.getppid()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another libc
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(LOST)
