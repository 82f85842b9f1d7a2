"""`simsd bench --server`: a real server on loopback, and flags that do not go together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simsd import LLM
from simsd.benchmark.load import Ask
from simsd.cli.load import extensions
from simsd.cli.main import app
from simsd.serving.app import create_app
from simsd.serving.settings import ServerSettings
from tests.serving.support import listening


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with listening(create_app(LLM(device="cpu", max_num_seqs=4), ServerSettings(model_name="tiny"))) as found:
        yield found


def bench(*words: str):
    return CliRunner().invoke(app, ["bench", *words])


def test_a_server_is_asked_in_every_way_that_is_named(url: str) -> None:
    few = ("--suite", "trivia", "--limit", "2", "--requests", "3", "--concurrency", "2", "--max-tokens", "12")
    result = bench(
        "--server", url, *few, "--methods", "none,exact", "--schedules", "dynamic", "--windows", "4", "--json"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    # a fixed window: the automatic one may find that drafts do not pay, and draft nothing
    others = {"temperature": 0.0, "remasking_strategy": "low_confidence_dynamic"}
    drafting = {"method": "exact", "num_speculative_tokens": 4}
    assert [row["asked"] for row in found] == [others | {"method": "none"}, others | drafting]
    assert all((row["requests"], row["failures"], row["concurrency"]) == (3, {}, 2) for row in found)
    assert found[0]["tokens"] == found[1]["tokens"] > 0  # the same greedy texts
    assert found[0]["acceptance_rate"] is None
    assert found[1]["acceptance_rate"] > 0


def test_a_window_of_auto_is_asked_for_like_any_other(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = []
    body = Ask.body

    def kept(self: Ask, *words: Any) -> dict[str, Any]:
        bodies.append(body(self, *words)["simsd"])
        return body(self, *words)

    monkeypatch.setattr(Ask, "body", kept)
    few = ("--server", url, "--suite", "trivia", "--limit", "1", "--max-tokens", "8")
    result = bench(*few, "--methods", "none,exact", "--windows", "auto,4")
    assert result.exit_code == 0, result.output
    asked = [{"method": "none"}, *({"method": "exact", "num_speculative_tokens": n} for n in ("auto", 4))]
    assert bodies == [each for each in asked for _ in range(2)]  # the first answer of a run is not counted
    headings = ["method none", "method exact, num_speculative_tokens auto", "method exact, num_speculative_tokens 4"]
    assert [line for line in result.stdout.splitlines() if "method" in line] == [
        f"temperature 0.0, {heading}" for heading in headings
    ]


def test_the_table_names_percentiles(url: str) -> None:
    result = bench("--server", url, "--suite", "trivia", "--limit", "1", "--max-tokens", "8")
    assert result.exit_code == 0, result.output
    for word in ("time to first token", "time per token", "latency", "p50", "p95", "p99", "tokens per target forward"):
        assert word in result.stdout


def test_answers_that_fail_are_counted_and_leave_code_1(url: str, tmp_path: Path) -> None:
    long = "x" * 5000  # more than the embedded pair takes
    lines = [json.dumps({"prompt": prompt}) + "\n" for prompt in ("hello", long)]
    (tmp_path / "mine.jsonl").write_text("".join(lines), "utf-8")
    result = bench("--server", url, "--file", str(tmp_path / "mine.jsonl"), "--json", "--max-tokens", "4")
    assert result.exit_code == 1
    assert json.loads(result.stdout)[0]["failures"] == {"status 400": 1}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--concurrency", "4"), "--concurrency is given, but no --server"),
        (("--requests", "4"), "--requests is given, but no --server"),
        (("--server", "http://127.0.0.1:9", "--html", "x.html"), "--html does not go with --server"),
        (("--server", "http://127.0.0.1:9", "--restart"), "--restart does not go with --server"),
        (("--server", "http://127.0.0.1:9", "--dtype", "float32"), "--dtype does not go with --server"),
        (("--server", "http://127.0.0.1:9", "--windows", "auto,many"), "--windows has 'many'; give auto, or a whole"),
        (("--server", "http://127.0.0.1:9", "--limit", "1"), "no model server answers at http://127.0.0.1:9"),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_sentence(words: tuple[str, ...], says: str) -> None:
    result = bench(*words)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Traceback" not in result.output


def test_nothing_named_asks_for_nothing() -> None:
    assert extensions({"method": [], "drafter": []}) == [{}]
    assert extensions({"method": ["none", "exact"], "drafter": ["self"]}) == [
        {"method": "none"},
        {"method": "exact", "drafter": "self"},
    ]


def test_a_method_that_drafts_nothing_is_asked_once_whatever_is_named_for_drafts() -> None:
    schedules = ["sequential", "random"]
    axes = {"method": ["none", "simsd"], "remasking_strategy": schedules, "num_speculative_tokens": ["auto", 4]}
    ways = extensions(axes | {"drafter": ["self", "model"]})
    assert [way for way in ways if way["method"] == "none"] == [
        {"method": "none", "remasking_strategy": schedule} for schedule in schedules
    ]
    assert sum(way["method"] == "simsd" for way in ways) == 2 * 2 * 2
    # the server's own method may be any
    assert extensions({"num_speculative_tokens": ["auto", 4]}) == [
        {"num_speculative_tokens": "auto"},
        {"num_speculative_tokens": 4},
    ]
