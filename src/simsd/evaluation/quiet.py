"""What lm-evaluation-harness and the libraries below it print, for commands that report by themselves."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from importlib.util import find_spec

LEVEL = "LMEVAL_LOG_LEVEL"  # the harness's own variable


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, the harness says errors only, draws no bars and prints nothing; with LMEVAL_LOG_LEVEL set it is as loud
    as that says, on stderr: stdout is the command's own.

    Bars stay away where this is entered before torch is imported, and then for the rest of the process (`no_bars`).
    """
    if find_spec("lm_eval") is None:
        yield
        return
    if os.environ.get(LEVEL):
        import_module("lm_eval.utils").setup_logging()
        with redirect_stdout(sys.stderr):
            yield
        return
    no_bars()
    datasets, log = import_module("datasets"), logging.getLogger("lm_eval")
    level, bars = log.level, not datasets.are_progress_bars_disabled()
    log.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        log.setLevel(level)
        if bars:
            datasets.enable_progress_bars()


def no_bars() -> None:
    """No bars of the harness in this process, unless it is to be loud. tqdm takes their defaults from the environment,
    once: this does something only before torch, which imports it, is imported."""
    if "tqdm" in sys.modules or "TQDM_DISABLE" in os.environ or os.environ.get(LEVEL):
        return
    os.environ["TQDM_DISABLE"] = "1"
    try:
        import_module("tqdm")
    finally:
        del os.environ["TQDM_DISABLE"]
