"""The kernels as they are compiled for this CPU, and for one with AVX2 alone."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from simsd.native import build
from simsd.native.library import Kernels, loaded

VARIANTS = ("native", "x86-64-v3")


@functools.cache
def variant(march: str) -> Kernels:
    """Skips the test where they cannot be compiled, or this CPU cannot run them."""
    if march == "x86-64-v3" and not {"avx2", "fma"} <= flags():
        pytest.skip("this CPU has no AVX2")
    try:
        return loaded(march)
    except build.BuildError as error:
        pytest.skip(str(error).partition("\n")[0])


def flags() -> set[str]:
    """What the CPU can do."""
    told = Path("/proc/cpuinfo")
    return set(told.read_text().partition("flags")[2].partition("\n")[0].split()) if told.exists() else set()
