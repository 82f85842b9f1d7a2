"""Operators that PyTorch's own compiler calls, or that newer versions brought: tried before they are relied on."""

from __future__ import annotations

from collections.abc import Callable


def works(check: Callable[[], bool]) -> bool:
    """What `check` finds; False where this build of PyTorch lacks the operators that it calls, or refuses them here."""
    try:
        return check()
    except (AttributeError, RuntimeError, NotImplementedError, TypeError):
        return False
