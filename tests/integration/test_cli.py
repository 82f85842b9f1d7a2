"""The real command line on the embedded pair, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simsd.cli.main import app

QUESTION = "Count from 28 in steps of 8, 12 numbers."
ANSWER = "28, 36, 44, 52, 60, 68, 76, 84, 92, 100, 108, 116."


def simsd(*arguments: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "simsd.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", input=input, timeout=120)


def found(*arguments: str) -> Any:
    done = simsd(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_generate_answers_the_same_with_and_without_drafts() -> None:
    exact = found("generate", QUESTION, "--num-speculative-tokens", "8")  # a window that no clock decides
    ordinary = found("generate", QUESTION, "--method", "none")
    assert exact["text"] == ordinary["text"] == ANSWER
    assert (exact["token_ids"], exact["steps"]) == (ordinary["token_ids"], ordinary["steps"])
    assert exact["stats"]["target_forwards"] < ordinary["stats"]["target_forwards"] / 2
    assert ordinary["stats"]["drafted_tokens"] == 0


def test_sampling_with_a_seed_repeats_and_equals_ordinary_decoding() -> None:
    flags = ("generate", QUESTION, "--temperature", "1.5", "--seed", "7", "--max-tokens", "24")
    assert found(*flags)["token_ids"] == found(*flags, "--method", "none")["token_ids"]


def test_a_batch_reports_the_prompt_that_failed() -> None:
    done = simsd("generate", "--json", "--raw", QUESTION, "", "--max-tokens", "8")
    assert done.returncode == 2
    good, empty = json.loads(done.stdout)
    assert "error" not in good
    assert empty["finish_reason"] == "error"
    assert empty["error"]["type"] == "PromptError"


def test_chat_streams_the_text_of_generate() -> None:
    done = simsd("chat", input=f"{QUESTION}\n{QUESTION}\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{ANSWER}\n{ANSWER}\n"


def test_the_trace_tells_how_each_token_came(tmp_path: Path) -> None:
    page = tmp_path / "trace.html"
    trace = found("trace", QUESTION, "--html", str(page))
    assert page.stat().st_size > 10_000
    revealed = {
        one["block_start"] + place: one["after"][place]
        for one in trace["rounds"]
        for place, verdict in enumerate(one["verdict"])
        if verdict in ("accepted", "corrected", "bonus")
    }
    text = [revealed[place] for place in sorted(revealed)]
    assert text[: len(trace["token_ids"])] == trace["token_ids"]
    accepted = sum(one["verdict"].count("accepted") for one in trace["rounds"])
    assert accepted == trace["stats"]["accepted_tokens"]
    assert len(trace["rounds"]) == trace["stats"]["rounds"]


def test_demo_measures_all_methods() -> None:
    rows = found("demo", "--questions", "2")["rows"]
    assert len(rows) == 6
    assert all(row["same_text"] == 1.0 for row in rows if row["method"] != "simsd")
    assert all(row["tokens_per_second"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--method", "none", "--acceptance", "match"), "method 'none'"),
        (("--temperature", "-1"), "temperature"),
        (("--model", "/no/such/folder"), "/no/such/folder"),
        (("--max-tokens", "0"), "max_tokens"),
        (("--device", "cuda:99"), "cuda"),
        (("--stop", ""), "stop"),
        (("--block-length", "0"), "block"),
        (("--denoising-steps", "9"), "denoising_steps"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(flags: tuple[str, ...], says: str) -> None:
    done = CliRunner().invoke(app, ["generate", "hello", *flags])  # the real engine, without a new process for each
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("simsd: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_mistake_leaves_no_traceback() -> None:
    done = simsd("generate", "hello", "--top-p", "2", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["type"] == "ConfigError"
    assert done.stderr == f"simsd: {json.loads(done.stdout)['error']['message']}.\n"


def test_a_block_length_that_was_not_trained_is_a_plain_warning() -> None:
    done = simsd("generate", "hello", "--block-length", "3", "--max-tokens", "6")
    assert done.returncode == 0
    assert done.stderr.startswith("simsd: warning: tiny was trained for block length 4, 8, 16, not 3")
    assert "UserWarning" not in done.stderr


def test_a_closed_pipe_is_no_error() -> None:
    command = [sys.executable, "-m", "simsd.cli.main", "trace", QUESTION, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == ""
