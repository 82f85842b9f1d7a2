from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simsd.benchmark import plots
from simsd.benchmark.journal import Journal
from simsd.benchmark.recipes import RECIPES
from simsd.cli.main import app
from simsd.errors import ConfigError

TINY = ("--suite", "trivia", "--limit", "1", "--repeats", "1", "--max-tokens", "8", "--device", "cpu")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["sweep", *arguments])


def test_the_list_says_what_each_recipe_asks() -> None:
    text = " ".join(run("--list").stdout.split())
    found = json.loads(run("--list", "--json").stdout)
    assert [one["name"] for one in found] == list(RECIPES)
    assert all(one["name"] in text for one in found)
    assert found[0]["values"] == list(range(1, 17))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "no recipe is named; choose one of gamma, block-length"),
        (("size",), "there is no recipe 'size'; choose one of gamma"),
        (("block-length", "--block-length", "8"), "--block-length is what 'block-length' varies"),
        (("gamma", "--num-speculative-tokens", "8"), "--num-speculative-tokens is what 'gamma' varies"),
        (("gamma", "--values", "4,x"), "'x'; give numbers such as 1,2,3"),
        (("gamma", "--values", "0", *TINY), "num_speculative_tokens is 0"),
        (("layout", "--values", "square"), "'square'; choose one of paired, unrolled"),
        (("layout", "--suite", "physics"), "--suite is 'physics'"),
        (("layout", "--repeats", "0"), "repeats is 0"),
        (("layout", "--temperature", "-1", *TINY), "temperature"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(arguments: tuple[str, ...], says: str) -> None:
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.startswith("simsd: ")
    assert done.stderr.count("\n") == 1


def test_an_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("", "utf-8")
    done = run("layout", "--output", str(tmp_path / "taken"))
    assert done.exit_code == 2
    assert "taken" in done.stderr
    assert "cannot be a folder" in done.stderr


def test_missing_matplotlib_is_said_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ConfigError("plots need matplotlib; install it")

    monkeypatch.setattr(plots, "require", missing)
    done = run("layout", "--output", str(tmp_path / "new"), *TINY)
    assert (done.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "plots need matplotlib" in done.stderr


def test_a_recipe_from_measurement_to_plot_and_again_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("gamma", "--values", "4,2", "--output", str(tmp_path / "out"), "--run", str(tmp_path / "run"), *TINY)
    done = run(*flags, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["values"] == [2, 4]
    by_cell = {row["cell"]: row for row in found["rows"]}
    assert len(by_cell) == 2 + 4 * 2
    curves = {one["curve"]: [by_cell[cell] for cell in one["cells"]] for one in found["curves"]}
    assert [row["same_text"] for row in curves["exact, static"]] == [1.0, 1.0]
    assert [row["options"]["num_speculative_tokens"] for row in curves["simsd, static"]] == [2, 4]
    assert all(row["tokens_per_forward"] > 0 for row in by_cell.values())

    out = tmp_path / "out"
    assert {file.name for file in out.iterdir()} == {f"gamma.{kind}" for kind in ("json", "csv", "md", "png", "svg")}
    assert json.loads((out / "gamma.json").read_text("utf-8")) == found
    with (out / "gamma.csv").open(encoding="utf-8") as file:
        assert [line["value"] for line in csv.DictReader(file)] == ["any", "any", *["2", "4"] * 4]
    assert (out / "gamma.png").read_bytes().startswith(b"\x89PNG")
    assert "gamma.svg" in (out / "gamma.md").read_text("utf-8")

    def nothing(*_: Any) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(Journal, "add", nothing)
    again = run(*flags, "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["rows"] == found["rows"]


def test_the_table_has_a_section_for_each_curve() -> None:
    text = run("position-copy", *TINY, "--values", "off").stdout
    for label in ("none, static", "none, dynamic", "simsd, static", "simsd, dynamic"):
        assert label in text
    assert "Position copy." in text
    assert "off" in text
