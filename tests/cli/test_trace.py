from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Run
from tests.cli.fake import FakeLLM


def test_the_terminal_shows_every_round(run: Run, llm: FakeLLM) -> None:
    result = run("trace", "hello")
    assert result.exit_code == 0, result.output
    assert llm.made == {"trace": True}
    assert "round 0" in result.stdout
    assert "round 1" in result.stdout
    for sign in ("✓", "↻", "✗"):
        assert sign in result.stdout
    assert "HELLO" in result.stdout


def test_json_is_the_whole_trace(run: Run) -> None:
    found = json.loads(run("trace", "hi", "--json").stdout)
    assert found["text"] == "HI"
    assert len(found["rounds"]) == 2
    first = found["rounds"][0]
    assert first["verdict"] == ["known", "accepted", "corrected", "rejected"]
    assert first["layout"]["mask"][1] == "11000000"
    assert found["tokens"][str(ord("H"))] == "H"
    assert found["options"] == {
        "method": "exact",
        "layout": "unrolled",
        "acceptance": "replay",
        "block_length": 4,
        "remasking_strategy": "low_confidence_static",
        "drafter": "hybrid",
        "num_speculative_tokens": "auto",
    }


def test_the_page_is_written_to_the_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "trace.html"
    result = run("trace", "hi", "--html", str(file))
    assert (result.exit_code, result.stdout) == (0, "")
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_place_that_cannot_be_written_is_told_before_decoding(run: Run, llm: FakeLLM, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none" / "trace.html"):
        result = run("trace", "hi", "--html", str(place))
        assert result.exit_code == 2
        assert "--html" in result.stderr
    assert llm.calls == []
