from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from simsd.benchmark import run as runs
from simsd.benchmark.cell import Cell, matrix
from simsd.benchmark.measure import Settings
from simsd.benchmark.report import Report
from simsd.benchmark.run import Interrupted, run
from simsd.benchmark.workload import Item
from simsd.errors import ConfigError
from simsd.llm import LLM
from simsd.models.loader import embedded

SETTINGS = Settings(max_tokens=8, repeats=1)


def test_a_report_says_what_was_run(pair: LLM, two_questions: list[Item], tmp_path: Path) -> None:
    cells = matrix(["exact"])
    path = tmp_path / "run.jsonl"
    report = run(pair, cells, two_questions, SETTINGS, path=path)
    about = report.about
    assert (about["model"], about["draft_model"], about["dtype"]) == ("tiny", "tiny-draft", "float32")
    assert (about["workload"], about["settings"]) == ({"trivia": 2}, SETTINGS.to_dict())
    assert (about["block_length"], about["resumed"]) == (pair.options.block_length, False)
    assert about["cells"] == [row.cell.key for row in report.rows] == [cell.key for cell in cells]
    json.dumps(report.to_dict(), allow_nan=False)
    again = run(pair, cells, two_questions, SETTINGS, path=path)
    assert again.about["resumed"]
    assert again.rows == report.rows
    assert not run(pair, cells[:1], two_questions[:1], SETTINGS, path=path, restart=True).about["resumed"]


@pytest.mark.parametrize("changed", ["cells", "items", "settings"])
def test_only_the_same_run_goes_on(pair: LLM, two_questions: list[Item], tmp_path: Path, changed: str) -> None:
    path = tmp_path / "run.jsonl"
    run(pair, [Cell("none")], two_questions[:1], SETTINGS, path=path)
    cells = matrix(["exact"]) if changed == "cells" else [Cell("none")]
    items = two_questions[1:] if changed == "items" else two_questions[:1]
    settings = Settings(max_tokens=9, repeats=1) if changed == "settings" else SETTINGS
    with pytest.raises(ConfigError, match="fingerprint" if changed == "items" else changed):
        run(pair, cells, items, settings, path=path)


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """A pair of checkpoints that may be changed."""
    for name in ("tiny", "tiny-draft"):
        shutil.copytree(embedded(name), tmp_path / name)
    return {"model": tmp_path / "tiny", "draft_model": tmp_path / "tiny-draft"}


@pytest.mark.parametrize("which", ["model", "draft_model"])
@pytest.mark.parametrize("change", ["touched", "longer", "another file", "replaced"])
def test_other_weights_at_the_same_place_are_another_run(
    folders: dict[str, Path], two_questions: list[Item], tmp_path: Path, which: str, change: str
) -> None:
    path = tmp_path / "run.jsonl"

    def again() -> Report:
        llm = LLM(str(folders["model"]), draft_model=str(folders["draft_model"]), method="none", device="cpu")
        return run(llm, [Cell("none")], two_questions[:1], SETTINGS, path=path)

    again()
    (folders["model"] / "notes.txt").write_text("no part of the checkpoint", "utf-8")
    assert again().about["resumed"]
    weights, config = folders[which] / "model.safetensors", folders[which] / "config.json"
    now = (config if change == "longer" else weights).stat().st_mtime_ns
    if change == "touched":
        os.utime(weights, ns=(now, now + 1_000_000))
    elif change == "replaced":  # as `cp -p` does
        content = weights.read_bytes()
        (folders[which] / "new").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        os.utime(folders[which] / "new", ns=(now, now))
        (folders[which] / "new").replace(weights)
    elif change == "longer":
        config.write_text(config.read_text("utf-8") + "\n", "utf-8")
        os.utime(config, ns=(now, now))
    else:
        (folders[which] / "chat_template.jinja").write_text("{{ messages[0].content }}", "utf-8")
    words = "the files of the model" if which == "model" else "the files of the draft model"
    with pytest.raises(ConfigError, match=words):
        again()


def test_cells_are_checked_before_a_file_is_begun(pair: LLM, two_questions: list[Item], tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(ConfigError, match="statik"):
        run(pair, [Cell("none", "statik")], two_questions, SETTINGS, path=path)
    assert not path.exists()


def test_an_interruption_says_how_far_it_came(
    pair: LLM, two_questions: list[Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(llm: LLM, cells: object, items: object, settings: object, journal: object, advance: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "measure", measure)
    with pytest.raises(Interrupted) as caught:
        run(pair, [Cell("none")], two_questions, SETTINGS)
    assert (caught.value.done, caught.value.total) == (0, 2)
