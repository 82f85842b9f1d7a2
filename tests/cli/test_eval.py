"""`simsd eval` on the embedded pair: what it prints, what it writes, and what it refuses before it loads a model."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simsd.cli import common, eval, main
from simsd.evaluation.statistics import wilson
from simsd.evaluation.suites import load_suite


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main.app, ["eval", *arguments])


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(common, "make_llm", fail)


def own_suite(folder: Path) -> str:
    rows = [
        {"skill": "trivia", "question": "What is the capital of Qatar?", "answer": "Doha"},
        {"skill": "trivia", "question": "What is the capital of Norway?", "answer": "Rome"},
    ]
    file = folder / "own.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(file)


def test_json_has_accuracy_and_speed_of_each_suite(tmp_path: Path) -> None:
    own = own_suite(tmp_path)
    result = run(
        "--suite", own, "--suite", "choice", "--limit", "2", "--json", "--method", "none", "--max-tokens", "40"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["options"]["method"], found["harness"]) == ("none", None)
    mine, choice = found["suites"]
    assert (mine["suite"], mine["right"], mine["questions"], mine["accuracy"]) == (own, 1, 2, 0.5)
    assert mine["interval"] == list(wilson(0.5, 2))
    assert choice["questions"] == 2
    assert mine["finish_reasons"] == {"stop": 2}
    assert mine["acceptance_rate"] is None and mine["stats"]["tokens"] > 0
    assert 0 < mine["tokens_per_forward"] <= 1  # ordinary decoding


def test_the_file_holds_every_question_with_its_answer(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    result = run("--suite", own_suite(tmp_path), "-o", str(file))
    assert result.exit_code == 0, result.output
    assert "1 of 2" in result.stdout and "50.0%" in result.stdout
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert [line["right"] for line in lines] == [True, False]
    assert lines[0]["text"] == "Doha" and lines[0]["question"] == "What is the capital of Qatar?"


def test_tasks_of_the_harness_run_beside_suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets: Any = pytest.importorskip("datasets")
    pytest.importorskip("lm_eval")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = [{"question": one.question, "answer": one.answer} for one in load_suite("math", 2)]
    file, out = tmp_path / "gsm8k.jsonl", tmp_path / "out.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    flags = ("--tasks", "simsd_gsm8k", "--data", f"gsm8k={file}", "--max-tokens", "16", "--batch-size", "2")
    result = run(*flags, "--apply-chat-template", "--json", "--output", str(out))
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["suites"] == []
    (task,) = found["harness"]["tasks"]
    assert (task["task"], task["questions"], task["num_fewshot"]) == ("simsd_gsm8k", 2, 0)
    assert set(task["metrics"]) == {"exact_match,none", "exact_match_stderr,none"}
    assert found["harness"]["stats"]["tokens"] <= 32
    assert [json.loads(line)["task"] for line in out.read_text("utf-8").splitlines()] == ["simsd_gsm8k"] * 2
    table = run(*flags, "--limit", "1")
    assert "simsd_gsm8k" in table.stdout and "per target forward" in " ".join(table.stdout.split())


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "maths"], "no suite 'maths'"),
        (["--suite", "math", "--output", "no/such/folder/file"], "cannot be written"),
        (["--tasks", ","], "--tasks names no task"),
        (["--tasks", "simsd_gsm8k", "--stop", "x"], "--stop does not go with --tasks"),
        (["--tasks", "simsd_gsm8k", "--data", "gsm8k"], "--data is 'gsm8k'; write NAME=FILE"),
        (["--tasks", "simsd_gsm8k", "--data", "gsm8k=missing.jsonl"], "there is no file missing.jsonl"),
        (["--temperature", "-1", "--max-tokens", "0", "--method", "fast"], "--method is 'fast'"),
    ],
)
def test_a_mistake_is_one_sentence_before_the_model_is_loaded(arguments: list[str], message: str) -> None:
    if "--tasks" in arguments and find_spec("lm_eval") is None:
        pytest.skip("lm_eval is not installed")
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.usefixtures("no_model")
def test_without_the_extra_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eval, "find_spec", lambda name: None)
    result = run("--tasks", "gsm8k")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "simsd: --tasks needs lm-evaluation-harness; run: pip install 'simsd[eval]'.\n"


def test_sampling_flags_become_generation_arguments() -> None:
    from simsd.cli.options import Decoding

    assert eval._generation(Decoding(max_tokens=9, seed=4)) == {"max_gen_toks": 9}
    warm = eval._generation(Decoding(temperature=0.5, top_p=0.9, seed=4))
    assert warm == {"temperature": 0.5, "top_p": 0.9, "do_sample": True, "seed": 4}
