"""The harness is as loud as its variable says, and silent without it; stdout is the command's own."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simsd.evaluation.quiet import LEVEL, quiet
from simsd.evaluation.suites import load_suite

pytest.importorskip("lm_eval")
LOG = logging.getLogger("lm_eval")


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LEVEL, raising=False)
    for name, value in {"level": LOG.level, "handlers": list(LOG.handlers), "propagate": LOG.propagate}.items():
        monkeypatch.setattr(LOG, name, value)


def test_inside_the_harness_says_errors_only_and_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    datasets: Any = pytest.importorskip("datasets")
    before = LOG.level, datasets.utils.are_progress_bars_disabled()
    with quiet():
        print("bootstrapping for stddev")
        told = [LOG.isEnabledFor(level) for level in (logging.WARNING, logging.ERROR)]
        assert datasets.utils.are_progress_bars_disabled()
    print("mine")
    assert told == [False, True]
    assert capsys.readouterr().out == "mine\n"
    assert (LOG.level, datasets.utils.are_progress_bars_disabled()) == before


def test_where_it_is_to_be_loud_stdout_is_still_the_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(LEVEL, "INFO")
    with quiet():
        print("bootstrapping for stddev")
        assert LOG.isEnabledFor(logging.INFO)
    out, err = capsys.readouterr()
    assert out == "" and "bootstrapping" in err


def test_a_command_with_a_task_writes_its_figures_alone(tmp_path: Path) -> None:
    file = tmp_path / "gsm8k.jsonl"
    (one,) = load_suite("math", 1)
    file.write_text(json.dumps({"question": one.question, "answer": one.answer}) + "\n", "utf-8")
    flags = ["--tasks", "simsd_gsm8k", "--data", f"gsm8k={file}", "--max-tokens", "4", "--json"]
    found = subprocess.run(
        [sys.executable, "-m", "simsd.cli.main", "eval", *flags], capture_output=True, text=True, cwd=tmp_path
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert json.loads(found.stdout)["harness"]["tasks"][0]["questions"] == 1
