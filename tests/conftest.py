"""Settings that every test shares."""

from __future__ import annotations

import os
import signal

# One thread a process: the models are tiny, and pytest-xdist runs one process a core. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from hypothesis import settings

from simsd.native.library import kernels

# The same examples in every run, and no verdict by the clock; `--hypothesis-profile=search` looks for new ones.
settings.register_profile("simsd", deadline=None, derandomize=True, database=None)
settings.register_profile("search", deadline=None, max_examples=2000, database=None)
settings.load_profile("simsd")


def pytest_sessionstart() -> None:
    """The kernels are compiled before any test listens to what a command says; and an interruption is one, also where
    a shell that ran the tests in the background has made this process, and all that it starts, deaf to it."""
    kernels()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need a CUDA device are skipped where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
