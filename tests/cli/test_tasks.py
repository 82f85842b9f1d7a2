"""Prompts of a real harness task from a local file, without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simsd.cli.main import app

FEW = ("--repeats", "1", "--max-tokens", "4", "--device", "cpu", "--limit", "2", "--json")


@pytest.fixture
def gsm8k(tmp_path: Path) -> str:
    rows = [{"question": f"{n} + 1?", "answer": f"It is #### {n + 1}"} for n in range(3)]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return f"gsm8k={file}"


@pytest.mark.parametrize("command", [("bench", "--methods", "none"), ("sweep", "position-copy", "--values", "on")])
def test_a_task_reads_the_file_that_is_named(gsm8k: str, command: tuple[str, ...]) -> None:
    pytest.importorskip("lm_eval")
    result: Any = CliRunner().invoke(app, [*command, *FEW, "--task", "simsd_gsm8k", "--data", gsm8k])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["about"]["workload"] == {"simsd_gsm8k": 2}


@pytest.mark.parametrize("flag", ["--csv", "--run"])
def test_no_result_replaces_the_file_of_a_task(gsm8k: str, flag: str) -> None:
    result = CliRunner().invoke(app, ["bench", "--task", "simsd_gsm8k", "--data", gsm8k, flag, gsm8k.split("=")[1]])
    assert result.exit_code == 2
    assert "which --data reads too" in result.stderr
