from __future__ import annotations

import csv
import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from simsd.benchmark import run as runs
from simsd.cli import measuring
from simsd.cli.main import app
from simsd.errors import ConfigError
from tests.cli.conftest import Run
from tests.cli.fake import FakeLLM
from tests.small_disk import room

SMALL = ("bench", "--suite", "trivia", "--limit", "1", "--repeats", "1", "--max-tokens", "8", "--device", "cpu")


def bench(*arguments: str) -> Any:
    """The real command on the embedded pair, at its smallest."""
    return CliRunner().invoke(app, [*SMALL, *arguments], env={"COLUMNS": "100"})


def test_the_baselines_are_there_unasked() -> None:
    result = bench("--methods", "exact", "--schedules", "sequential", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [(row["method"], row["schedule"]) for row in found["rows"]] == [
        ("none", "low_confidence_static"),
        ("none", "low_confidence_dynamic"),
        ("none", "sequential"),
        ("exact", "sequential"),
    ]
    assert found["rows"][3]["same_text"] == 1.0
    assert found["about"]["settings"]["max_tokens"] == 8
    assert found["about"]["workload"] == {"trivia": 1}
    assert result.stderr == ""


def test_lists_take_commas_and_repetition_and_options_hold_for_all() -> None:
    axes = ("--method", "exact,simsd", "--window", "2", "--window", "auto", "--schedule", "static")
    result = bench(*axes, "--draft-steps", "2", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [row["label"] for row in rows if row["method"] != "none"] == [
        f"{method} draft-steps=2{window}" for method in ("exact", "simsd") for window in (" window=2", "")
    ]


def test_the_tables_fit_into_a_hundred_columns(tmp_path: Path) -> None:
    files = {name: tmp_path / f"report.{name}" for name in ("csv", "markdown", "html")}
    written = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    result = bench("--methods", "exact-draft-order", "--windows", "auto,4", "--schedules", "static", *written)
    assert result.exit_code == 0, result.output
    assert "exact-draft-order window=4" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert "…" not in result.stdout
    lines = list(csv.DictReader(files["csv"].read_text("utf-8").splitlines()))
    assert len(lines) == 4
    assert files["markdown"].read_text("utf-8").startswith("# simsd bench\n\n- model: tiny")
    assert files["html"].read_text("utf-8").count("<svg") == 3


def test_where_there_is_little_room_names_are_folded_with_an_indent() -> None:
    words = ("--methods", "exact-draft-order", "--windows", "2,4", "--schedules", "static")
    result = CliRunner().invoke(app, [*SMALL, *words], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in result.stdout
    cost = [line.rstrip() for line in lines[next(at for at, line in enumerate(lines) if line.startswith("Cost")) :]]
    first = cost.index("   exact-draft-")
    assert cost[first + 1] == "     order" and cost[first + 2].startswith("     window=2 ")


@pytest.mark.parametrize("width", [60, 80])
def test_headings_go_from_side_to_side_over_columns_that_stay_in_line(width: int) -> None:
    axes = (
        "--methods",
        "simsd,exact-draft-order",
        "--windows",
        "auto,2",
        "--block-lengths",
        "4",
        "--temperatures",
        "0.25",
    )
    result = CliRunner().invoke(app, [*SMALL, *axes], env={"COLUMNS": str(width)})
    assert result.exit_code == 0, result.output
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    headings = [" static, B = 4, T = 0.25", " dynamic, B = 4, T = 0.25"]
    assert [line for line in lines if "B = 4, T" in line or line.endswith(("T =", "0.25"))] == headings * 3
    rule = ""
    for line in lines:
        assert len(line) <= width
        rule = line if "──" in line else rule
        if re.match(r" {3,}\S.* \S+$", line) and rule and not line.startswith("    "):
            assert len(line) == len(rule), line  # the last figure ends where the columns do


def test_in_eighty_columns_no_name_breaks_inside_a_word() -> None:
    axes = ("--methods", "simsd,exact-draft-order", "--drafters", "lookup,model", "--windows", "4,8")
    result = CliRunner().invoke(app, [*SMALL, *axes, "--schedules", "static"], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80 and "…" not in result.stdout
    names = [found[1] for line in lines if (found := re.match(r" {3,5}(\S+(?: \S+)*)", line))]
    whole = {"none", "simsd", "exact-draft-order", "drafter=lookup", "drafter=model", "window=4", "window=8"}
    parts = {"exact-draft-", "order", "drafter=", "lookup", "model"}
    assert {word for name in names for word in name.split()} == whole | parts


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("exact", ["  exact"]),
        ("exact drafter=lookup window=4", ["  exact", "    drafter=", "    lookup", "    window=4"]),
        ("exact-draft-order", ["  exact-draft-", "    order"]),
        ("simsd w=4 t=0.9", ["  simsd w=4", "    t=0.9"]),
        ("a-very-long-name_of=a-thing", ["  a-very-long-", "    name_of=a-", "    thing"]),
    ],
)
def test_names_break_at_their_signs(name: str, lines: list[str]) -> None:
    assert measuring._folded(name, 14, "  ").split("\n") == lines


def test_the_help_names_the_extra() -> None:
    text = CliRunner().invoke(app, ["bench", "--help"], env={"COLUMNS": "100"}).stdout
    assert "pip install 'simsd[serve]'" in text


def test_a_full_disk_under_the_run_says_what_is_kept_and_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    assert bench("--methods", "exact", "--run", str(file)).exit_code == 0
    first, second, _ = file.read_bytes().split(b"\n", 2)
    with room(len(first) + len(second) + 99):
        full = bench("--methods", "exact", "--run", str(file), "--restart")
    assert full.exit_code == 1
    assert f"samples kept in {file}: 1; make room" in full.stderr
    assert full.stderr.count("\n") == 1
    again = bench("--methods", "exact", "--run", str(file), "--json")
    assert json.loads(again.stdout)["about"]["resumed"]


def test_ctrl_c_says_what_is_kept_and_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a run.jsonl"
    flags = ["--methods", "exact", "--run", str(file)]
    monkeypatch.setattr(sys, "argv", ["simsd", *SMALL, *flags, "--restart"])
    real = runs.measure

    def interrupted(*arguments: Any) -> None:
        def advance(n: int) -> None:
            raise KeyboardInterrupt

        llm, cells, items, settings, journal, _ = arguments
        real(llm, cells, items, settings, journal, advance)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "measure", interrupted)
        result = bench(*flags, "--restart")
    assert (result.exit_code, result.stdout) == (130, "")
    assert "1 of 4 samples are kept" in result.stderr
    command = result.stderr.split("To go on: ")[1]
    assert shlex.split(command) == ["simsd", *SMALL, *flags]
    assert len(file.read_text("utf-8").splitlines()) == 2
    again = CliRunner().invoke(app, [*shlex.split(command)[1:], "--json"])
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["about"]["resumed"]
    assert len(file.read_text("utf-8").splitlines()) == 5

    other = bench("--methods", "simsd", "--run", str(file), "--json")
    assert other.exit_code == 2
    message = json.loads(other.stdout)["error"]["message"]
    assert "another run: cells only there: exact" in message
    assert "only here: simsd" in message and "--restart" in message


def test_without_a_file_ctrl_c_says_that_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "measure", interrupted)
    result = bench("--methods", "none")
    assert result.exit_code == 130
    assert "nothing is kept" in result.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--methods", "exact,exakt"], "--methods has 'exakt'"),
        (["--schedules", "fast"], "--schedules has 'fast'"),
        (["--drafters", "oracle"], "--drafters has 'oracle'"),
        (["--drafters", "trajectory"], "choose from model, hybrid, self, lookup"),
        (["--windows", "4,0"], "--windows has '0'"),
        (["--windows", "4,,8"], "--windows has ''"),
        (["--block-lengths", "four"], "--block-lengths has 'four'"),
        (["--temperatures", "warm"], "--temperatures has 'warm'"),
        (["--suite", "maths"], "--suite is 'maths'"),
        (["--file", "missing.jsonl"], "missing.jsonl"),
        (["--data", "gsm8k=missing.jsonl"], "no --task"),
        (["--task", "simsd_gsm8k", "--data", "gsm8k=missing.jsonl"], "missing.jsonl"),
        (["--task", "simsd_gsm8k", "--data", "gsm8k"], "NAME=FILE"),
        (["--limit", "0"], "limit is 0"),
        (["--repeats", "0"], "repeats is 0"),
        (["--batch-size", "0"], "batch_size is 0"),
        (["--html", "no/such/folder.html"], "--html"),
        (["--csv", "."], "--csv"),
        (["--run", "no/such/run.jsonl"], "--run"),
        (["--restart"], "--restart"),
        (["--run", "notes.txt"], "notes.txt is not a journal"),
        (["--run", "notes.txt", "--restart"], "notes.txt is not a journal"),
        (["--dtype", "float3"], "--dtype"),
    ],
)
def test_mistakes_are_told_before_a_model_is_loaded(
    run: Run, llm: FakeLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("mine\n", "utf-8")
    result = run("bench", *flags)
    assert (tmp_path / "notes.txt").read_text("utf-8") == "mine\n"
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert result.stderr.startswith("simsd: ") and result.stderr.count("\n") == 1
    assert llm.made == {}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--methods", "simsd", "--acceptance", "replay"], "cell 'simsd"),
        (["--temperatures", "-1"], "temperature is -1"),
        (["--draft-steps", "9"], "draft_steps is 9"),
        (["--top-p", "2"], "top_p is 2"),
    ],
)
def test_cells_that_cannot_be_decoded_are_named(flags: list[str], words: str) -> None:
    result = bench(*flags)
    assert result.exit_code == 2, result.output
    assert words in result.stderr


def test_prompts_of_a_file_and_of_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int | None, dict[str, str]]] = []

    def task_prompts(name: str, limit: int | None, data: dict[str, str]) -> list[str]:
        asked.append((name, limit, data))
        return ["What is 2 + 2?"] * (limit or 9)

    stub = ModuleType("simsd.evaluation.harness_run")
    stub.task_prompts = task_prompts  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "simsd.evaluation.harness_run", stub)
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "one"}\n{"prompt": "two"}\n{"prompt": "three"}\n', "utf-8")
    small = ("bench", "--repeats", "1", "--max-tokens", "4", "--methods", "none", "--schedules", "static", "--json")
    result = CliRunner().invoke(app, [*small, "--file", str(file), "--task", "gsm8k", "--data", f"gsm8k={file}"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["about"]["workload"] == {"mine": 3, "gsm8k": 2}  # a file whole, few of a task
    assert asked == [("gsm8k", 2, {"gsm8k": str(file)})]
    assert found["rows"][0]["accuracy"] is None


def test_matplotlib_is_asked_for_before_the_run(
    run: Run, llm: FakeLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("bench", "--html", str(tmp_path / "report.html"))
    assert result.exit_code == 2
    assert "pip install 'simsd[bench]'" in result.stderr
    assert llm.made == {}


@pytest.mark.parametrize("flag", ["--csv", "--markdown", "--html", "--run"])
@pytest.mark.parametrize("name", ["mine.jsonl", "./mine.jsonl", "link"])
def test_no_result_replaces_the_questions(run: Run, llm: FakeLLM, tmp_path: Path, flag: str, name: str) -> None:
    (tmp_path / "mine.jsonl").write_text('{"prompt": "one"}\n', "utf-8")
    (tmp_path / "link").symlink_to("mine.jsonl")
    result = run("bench", "--file", str(tmp_path / "mine.jsonl"), flag, str(tmp_path / name))
    assert result.exit_code == 2
    assert flag in result.stderr and "--file reads" in result.stderr
    assert (tmp_path / "mine.jsonl").read_text("utf-8") == '{"prompt": "one"}\n'
    assert llm.made == {}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("as_json", [False, True])
def test_a_full_disk_does_not_cost_the_tables(tmp_path: Path, as_json: bool) -> None:
    more = ["--json"] if as_json else []
    result = bench("--methods", "none", "--csv", "/dev/full", "--markdown", str(tmp_path / "a.md"), *more)
    assert result.exit_code == 1
    assert result.stderr.startswith("simsd: /dev/full was not written") and result.stderr.count("\n") == 1
    assert json.loads(result.stdout)["rows"] if as_json else "tokens/s" in result.stdout
    assert "tokens/s" in (tmp_path / "a.md").read_text("utf-8")


def test_only_the_models_flags_reach_the_model(monkeypatch: pytest.MonkeyPatch, run: Run, llm: FakeLLM) -> None:
    measured: list[FakeLLM] = []

    def only_note(llm: FakeLLM, *arguments: Any, **named: Any) -> None:
        measured.append(llm)
        raise ConfigError("enough")

    monkeypatch.setattr(runs, "run", only_note)
    run("bench", "--dtype", "float64", "--draft-steps", "2", "--max-tokens", "4", "--limit", "1")
    assert llm.made == {"dtype": "float64", "method": "none"}
    assert measured == [llm]
