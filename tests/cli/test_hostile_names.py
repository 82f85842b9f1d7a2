"""Files with names that mean something to a terminal, to rich, to Markdown, to a formula, or are no text at all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simsd.cli.main import app
from simsd.models.loader import embedded

NAMES = ["[/red]", "\x1b[2J\x9b31m\u202e\nsimsd: fine", "\udcff", "<b>|*$x_{$"]
FEW = ("--repeats", "1", "--max-tokens", "4", "--device", "cpu")
BENCH = ("bench", "--methods", "none", *FEW)
SWEEP = ("sweep", "position-copy", "--values", "on", *FEW)


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def safe(text: str) -> bool:
    """No control character but the end of a line."""
    return all(char == "\n" or char.isprintable() for char in text)


@pytest.fixture(params=NAMES, ids=ascii)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def questions(tmp_path: Path, name: str) -> list[str]:
    """Two files of that name, so that reports name their whole path."""
    for folder in ("a", "b"):
        file = tmp_path / folder / f"{name}.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text('{"prompt": "one"}\n', "utf-8")
    return [word for folder in ("a", "b") for word in ("--file", str(tmp_path / folder / f"{name}.jsonl"))]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_name_is_shown_and_not_obeyed(questions: list[str], name: str, tmp_path: Path, as_json: bool) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    files = [word for kind in ("csv", "markdown", "html") for word in (f"--{kind}", str(tmp_path / f"{name}.{kind}"))]
    result = run(*BENCH, *questions, *files, *["--json"] * as_json)
    assert result.exit_code == 0, result.output
    assert safe(result.stdout) and result.stderr == ""
    assert all((tmp_path / f"{name}.{kind}").stat().st_size for kind in ("csv", "markdown", "html"))
    if as_json:
        assert json.loads(result.stdout)["about"]["workload"] == {questions[1]: 1, questions[3]: 1}


def test_a_sweep_draws_what_has_such_a_name(name: str, tmp_path: Path) -> None:
    if name == "\udcff":
        pytest.skip("safetensors opens no such folder, and says so")
    for one in ("target", "draft"):
        shutil.copytree(embedded("tiny" if one == "target" else "tiny-draft"), tmp_path / name / one)
    models = ("--model", str(tmp_path / name / "target"), "--draft-model", str(tmp_path / name / "draft"))
    out = tmp_path / f"out {name}"
    result = run(*SWEEP, *models, "--suite", "trivia", "--limit", "1", "--output", str(out))
    assert result.exit_code == 0, result.output
    assert safe(result.stdout)
    assert len(list(out.iterdir())) == 5


@pytest.mark.parametrize("flags", [["--file"], ["--suite"], ["--methods"], ["--csv", "."], ["--run"]])
def test_a_mistake_with_such_a_name_is_one_safe_sentence(
    name: str, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    value = f"{name}/none" if flags[0] in ("--csv", "--run") else name
    result = run(*BENCH, flags[0], value, "--json")
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1 and safe(result.stderr)
    assert json.loads(result.stdout)["error"]["message"]
