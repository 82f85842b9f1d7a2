from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from simsd import __version__
from simsd.cli.main import app, main
from tests.cli.conftest import Run

COMMANDS = ("demo", "generate", "chat", "trace", "models", "serve")


def test_help_names_every_command(run: Run) -> None:
    text = run("--help").stdout
    assert all(command in text for command in COMMANDS)
    assert run("--version").stdout == f"simsd {__version__}\n"


@pytest.mark.parametrize("command", ["generate", "chat", "trace"])
def test_all_decoding_commands_have_the_same_flags(run: Run, command: str) -> None:
    text = run(command, "--help").stdout
    for flag in ("--draft-model", "--num-speculative-tokens", "--remasking-strategy", "--eb-threshold", "--stop"):
        assert flag in text
    assert "entropy_bounded" in text


@pytest.mark.parametrize(
    "command", ["", "demo", "generate", "chat", "trace", "bench", "sweep", "serve", "models", "eval"]
)
def test_help_shows_switches_without_a_value(command: str) -> None:
    shown = CliRunner().invoke(app, [*([command] if command else []), "--help"], env={"COLUMNS": "140"}).stdout
    flags = [one for one in _parameters(command) if getattr(one, "is_flag", False)]
    switches = [name for one in flags for name in one.opts if name.startswith("--")]  # in no certain order
    assert "--help" in switches
    for flag in switches:
        (line,) = [line for line in shown.splitlines() if re.match(rf"│ +{flag} ", line)]
        assert not re.search(r"<\w+>|BOOLEAN", line), line


def _parameters(command: str) -> list[Any]:
    root: Any = typer.main.get_command(app)
    found = root.commands[command] if command else root
    return found.get_params(found.make_context("simsd", [], resilient_parsing=True))


def test_help_loads_no_heavy_library() -> None:
    code = (
        "import sys\nfrom simsd.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'transformers', 'numpy', 'tokenizers') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("arguments", [["generate", "--nope"], ["generate", "x", "--top-k", "many"], ["nope"]])
def test_a_wrong_flag_is_one_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([*arguments, "--json"])
    told = capsys.readouterr()
    assert left.value.code == 2
    assert told.err.startswith("simsd: ")
    assert told.err.count("\n") == 1
    assert json.loads(told.out)["error"]["type"] == "UsageError"
