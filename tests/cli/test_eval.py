"""`simsd eval` on the embedded pair: what it prints, what it writes, and what it refuses before it loads a model."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from simsd.cli import common, eval, eval_tables, main, outputs
from simsd.errors import PromptError
from simsd.evaluation import accuracy, asking
from simsd.evaluation.accuracy import Answer
from simsd.evaluation.cost import Cost
from simsd.evaluation.statistics import wilson
from simsd.evaluation.suites import Question, load_suite
from simsd.llm import Completion


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
        (["--num-fewshot", "0"], "--num-fewshot is for tasks"),
        (["--include-path", "."], "--include-path is for tasks"),
        (["--data", "gsm8k=x.jsonl", "--suite", "math"], "--data is for tasks"),
        (["--apply-chat-template"], "--apply-chat-template is for tasks"),
        (["--confirm-run-unsafe-code"], "--confirm-run-unsafe-code is for tasks"),
        (["--tasks", "simsd_gsm8k", "--raw"], "--raw does not go with --tasks"),
        (["--tasks", "simsd_gsm8k", "--suite", "math", "--raw"], "--raw does not go with --tasks"),
        (["--suite", __file__, "--output", __file__], "which --suite reads too"),
        (["--tasks", "simsd_gsm8k", "--data", f"gsm8k={__file__}", "-o", __file__], "which --data reads too"),
        (["--tasks", "simsd_gsm8k", "--data", f"gsm9k={__file__}"], "--data names 'gsm9k'"),
        (["--tasks", "simsd_mbpp", "--data", f"gsm8k={__file__}"], "--data names 'gsm8k'"),
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


# ---------------------------------------------------------------------- questions that cannot be answered
def suite_of(folder: Path, *rows: dict[str, str], name: str = "own.jsonl") -> str:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps({"skill": "trivia", **row}) + "\n" for row in rows), "utf-8")
    return str(file)


RIGHT = {"question": "What is the capital of Qatar?", "answer": "Doha"}
WRONG = {"question": "What is the capital of Norway?", "answer": "Rome"}
FAILS = {"question": "What is <|MASK|>?", "answer": "x"}


@pytest.mark.parametrize("rows", [(FAILS,), (FAILS, FAILS), (RIGHT, FAILS, WRONG), (RIGHT, WRONG), (WRONG, WRONG)])
@pytest.mark.parametrize("as_json", [False, True])
def test_questions_that_fail_are_told_and_wrong_answers_are_no_failure(
    rows: tuple[dict[str, str], ...], as_json: bool, tmp_path: Path
) -> None:
    own, failed = suite_of(tmp_path, *rows), rows.count(FAILS)
    result = run("--suite", own, *(["--json"] if as_json else []))
    assert result.exit_code == (1 if failed else 0)
    if failed:
        assert f"{failed} of {len(rows)} questions could not be answered; the first: " in result.stderr
        assert "MASK" in result.stderr and result.stderr.count("\n") == 1
    else:
        assert result.stderr == ""
    if as_json:
        (found,) = json.loads(result.stdout)["suites"]
        assert (found["failed"], found["failure"] is None) == (failed, not failed)
    else:
        assert f"of {len(rows)}" in result.stdout


@pytest.mark.parametrize("where", ["question", "answer"])
@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\U0001f600", "\x1b[31m", "\u2028", "\x00"])
def test_any_text_of_a_question_can_be_written(where: str, text: str, tmp_path: Path) -> None:
    """Half a surrogate pair too, which UTF-8 has no form for."""
    asked = Question("trivia", "What is the capital of Qatar?", "Doha")
    asked = replace(asked, **{where: getattr(asked, where) + text})
    line = Answer(asked, Completion("", "", [], "error", error=PromptError(f"bad: {text}")), False).to_dict()
    with outputs.stream(tmp_path / "out.jsonl") as out:
        eval._write(out, line)
        eval._write(out, line)
    assert out.failures == []
    written = (tmp_path / "out.jsonl").read_text("utf-8").split("\n")
    assert [json.loads(one) for one in written[:-1]] == [line, line]


# ---------------------------------------------------------------------- Ctrl-C
def stop_at(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Ctrl-C as the answer number `count` is graded."""
    graded: list[str] = []

    def grade(question: Question, text: str) -> bool:
        if len(graded) == count:
            raise KeyboardInterrupt
        graded.append(text)
        return True

    monkeypatch.setattr(accuracy, "grade", grade)


@pytest.mark.parametrize(("count", "rows"), [(0, 0), (1, 1), (3, 2)])
@pytest.mark.parametrize("as_json", [False, True])
def test_an_interruption_keeps_and_shows_what_is_finished(
    count: int, rows: int, as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(monkeypatch, count)
    file = tmp_path / "out.jsonl"
    flags = ("--suite", own_suite(tmp_path), "--suite", "choice", "--limit", "2", "--batch-size", "1", "-o", str(file))
    result = run(*flags, *(["--json"] if as_json else []))
    assert result.exit_code == 130
    assert f"simsd: interrupted after {count} of 4 questions" in result.stderr
    assert file.exists() == (count > 0) == (str(file) in result.stderr)
    assert len(file.read_text("utf-8").splitlines() if count else []) == count
    if as_json:
        found = json.loads(result.stdout)
        assert found["interrupted"] is True
        assert sum(one["questions"] for one in found["suites"]) == count
    else:
        assert f"Suites, interrupted after {count} of 4 questions" in result.stdout
        assert f"{count % 2} of {count % 2} " in result.stdout and "2 asked" in result.stdout
        assert result.stdout.count("100.0%") == 2 * rows  # the value and its upper bound


def test_an_interruption_while_the_model_loads_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(common, "make_llm", stop)
    result = run("--suite", "math", "--limit", "2")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "simsd: interrupted after 0 of 2 questions.\n"


@pytest.mark.parametrize("at", [0, 1])
def test_interrupted_tasks_leave_their_texts(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lm_eval")
    datasets: Any = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = [{"question": one.question, "answer": one.answer} for one in load_suite("math", 2)]
    file, out = tmp_path / "gsm8k.jsonl", tmp_path / "out.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    answers = asking.answers

    def some(*given: Any) -> Any:
        for index, pair in enumerate(answers(*given)):
            if index == at:
                raise KeyboardInterrupt
            yield pair

    monkeypatch.setattr(asking, "answers", some)
    monkeypatch.setattr(asking, "warm_up", lambda *_: None)
    flags = ("--tasks", "simsd_gsm8k", "--data", f"gsm8k={file}", "--max-tokens", "8", "-o", str(out))
    result = run(*flags)
    assert result.exit_code == 130
    assert f"interrupted after {at} of 2 texts of the tasks, which are not graded" in result.stderr
    lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()] if at else []
    assert [(line["task"], line["graded"]) for line in lines] == [("simsd_gsm8k", False)] * at
    assert [line["doc"]["question"] for line in lines] == [row["question"] for row in rows[:at]] or at == 1


# ---------------------------------------------------------------------- looks
@pytest.mark.parametrize("name", ["[/red].jsonl", "[bold]x.jsonl", "a\x1b[31mb.jsonl", "long" * 30 + ".jsonl"])
def test_any_name_of_a_file_stands_in_the_table(name: str, tmp_path: Path) -> None:
    result = run("--suite", suite_of(tmp_path, RIGHT, name=name), "--max-tokens", "24")
    assert result.exit_code == 0, result.output
    plain = name.replace("\x1b", "\\x1b")
    assert plain in "".join(result.stdout.replace("│", "").split()) or len(name) > 70
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "1 of 1" in result.stdout and "100.0% (20.7% - 100.0%)" in result.stdout


def test_the_table_of_tasks_has_room_in_80_columns() -> None:
    pytest.importorskip("lm_eval")
    from simsd.evaluation.harness_run import TaskResult, TaskRun

    metrics = {"exact_match,strict-match": 0.5, "exact_match_stderr,strict-match": None, "acc,none": 0.25}
    results = [TaskResult("mmlu_high_school_european_history", 14042, 25, metrics)]
    out = Console(width=80, file=StringIO())
    found = eval_tables.Found(asked={}, tasks=["mmlu"], run=TaskRun(results, Cost(), [], 0, 0))
    eval_tables.show(found, out)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    for word in ("14042", "25", "0.5000", "0.2500", "strict-match", "exact_match"):
        assert word in text


def test_the_help_says_what_to_install() -> None:
    assert "pip install 'simsd[eval]'" in " ".join(run("--help").output.split())
