"""The real harness runs task files over local questions: prompts, extraction and grading, without a network."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import cache, partialmethod
from pathlib import Path
from typing import Any

import pytest

from simsd import LLM, ConfigError
from simsd.evaluation.suites import load_suite

pytest.importorskip("lm_eval")

from lm_eval.tasks import TaskManager

from simsd.evaluation.__main__ import main
from simsd.evaluation.harness_run import OWN_TASKS, TaskRun, find_tasks, run_tasks, task_prompts
from simsd.evaluation.tasks import data

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
SHORT = {"max_gen_toks": 24}
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the real questions are not here")


@cache
def llm() -> LLM:
    return LLM(max_num_seqs=20)


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    datasets: Any = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


def gsm8k_shaped(folder: Path, count: int = 4) -> Path:
    rows = [{"question": one.question, "answer": one.answer} for one in load_suite("math", count)]
    return write(folder / "gsm8k.jsonl", rows)


def mbpp_shaped(folder: Path, count: int = 4) -> Path:
    questions = load_suite("code", count + 3)
    ids = [2, 3, 4, *range(11, 11 + count)]
    rows = [
        {
            "task_id": index,
            "text": one.question,
            "code": one.answer,
            "test_list": list(one.tests),
            "test_setup_code": "",
        }
        for index, one in zip(ids, questions, strict=True)
    ]
    return write(folder / "mbpp.jsonl", rows)


def run(names: list[str], files: dict[str, str], include: Path | None = None, **options: Any) -> TaskRun:
    found, manager = find_tasks(names, include, files)
    assert found == names
    return run_tasks(llm(), found, manager, **options)


def metric(result: TaskRun, name: str) -> float:
    found = result.results[0].metrics[f"{name},none"]
    assert found is not None
    return found


def prompt(sample: dict[str, Any]) -> str:
    return sample["arguments"][0][0]


# The embedded pair knows questions of its own kinds only, and only as it was taught them: without "Answer:".
PLAIN = """
include: {own}/simsd_{task}.yaml
task: plain_{task}
doc_to_text: "{{{{{field}}}}}"
num_fewshot: 0
"""


def test_the_prompts_of_a_task_are_those_that_the_harness_sends(tmp_path: Path) -> None:
    files = {"gsm8k": str(gsm8k_shaped(tmp_path))}
    sent = [prompt(sample) for sample in run(["simsd_gsm8k"], files, limit=2).samples]
    assert task_prompts("simsd_gsm8k", 2, data=files) == list(dict.fromkeys(sent))
    assert len(task_prompts("simsd_gsm8k", None, data=files | {"mbpp": str(tmp_path / "gsm8k.jsonl")})) == 4
    with pytest.raises(ConfigError, match="--data names 'other'"):
        task_prompts("simsd_gsm8k", None, data=files | {"other": str(tmp_path / "gsm8k.jsonl")})
    with pytest.raises(ConfigError, match="no task 'nothing'"):
        task_prompts("nothing")


@pytest.mark.parametrize(
    ("task", "field", "name"), [("gsm8k", "question", "exact_match"), ("mbpp", "text", "pass_at_1")]
)
def test_right_answers_are_recognised_by_the_harness(tmp_path: Path, task: str, field: str, name: str) -> None:
    (tmp_path / "plain.yaml").write_text(PLAIN.format(own=OWN_TASKS, task=task, field=field), "utf-8")
    file = gsm8k_shaped(tmp_path) if task == "gsm8k" else mbpp_shaped(tmp_path)
    found = run([f"plain_{task}"], {task: str(file)}, tmp_path, chat=True)
    right = [sample[name] for sample in found.samples]
    assert found.results[0].questions == len(right) == 4
    assert metric(found, name) == sum(right) / 4 >= 0.5
    assert found.cost.finish_reasons == {"stop": 4}
    assert prompt(found.samples[0]) == llm().tokenizer.render_chat(
        [{"role": "user", "content": found.samples[0]["doc"][field]}]
    )


def test_a_shot_more_and_a_question_less(tmp_path: Path) -> None:
    found = run(["simsd_mbpp"], {"mbpp": str(mbpp_shaped(tmp_path))}, limit=2, num_fewshot=1, gen_kwargs=SHORT)
    assert (found.results[0].num_fewshot, found.results[0].questions) == (1, 2)
    example, asked = prompt(found.samples[0]).split("[DONE]")
    assert load_suite("code", 1)[0].answer in example
    assert asked.endswith("[BEGIN]\n") and load_suite("code", 4)[3].question in asked


def test_generation_arguments_go_before_the_tasks_own(tmp_path: Path) -> None:
    found = run(["simsd_gsm8k"], {"gsm8k": str(gsm8k_shaped(tmp_path))}, limit=1, gen_kwargs={"max_gen_toks": 3})
    assert found.cost.stats.tokens <= 3


def test_a_file_with_other_task_ids_is_a_test_split_as_a_whole(tmp_path: Path) -> None:
    rows = [{"task_id": 900 + i, "text": f"Task {i}", "code": "", "test_list": ["assert f()"]} for i in range(3)]
    splits = data.mbpp(str(write(tmp_path / "mine.jsonl", rows)))
    assert (len(splits["test"]), len(splits["prompt"])) == (3, 0)


def test_hand_made_answers_are_graded_by_the_guarded_process() -> None:
    row = {"text": "Add.", "code": "def f(a): return a + 1", "test_list": ["assert f(1) == 2"], "test_setup_code": ""}
    assert data.grade_mbpp(row, ["Here it is:\n```python\ndef f(a):\n    return a + 1\n```"]) == {"pass_at_1": 1.0}
    assert data.grade_mbpp(row, ["def f(a):\n    return a"]) == {"pass_at_1": 0.0}
    assert data.grade_mbpp(row, ["import socket\nsocket.socket()\ndef f(a): return a + 1"]) == {"pass_at_1": 0.0}
    assert data.grade_mbpp(row, ["import os\nos._exit(0)"]) == {"pass_at_1": 0.0}
    question = {"question": "How many?", "answer": "2 + 2 = 4\n#### 4"}
    assert data.grade_gsm8k(question, ["so there are 4 of them"]) == {"exact_match": 1.0}
    assert data.grade_gsm8k(question, ["#### 5, not 4"]) == {"exact_match": 0.0}


@needs_shared
def test_the_first_questions_of_gsm8k_arrive_whole() -> None:
    file = SHARED / "gsm8k_test.jsonl"
    found = run(["simsd_gsm8k"], {"gsm8k": str(file)}, limit=20, gen_kwargs=SHORT)
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()[:20]]
    assert [prompt(sample) for sample in found.samples] == [f"Question: {row['question']}\nAnswer:" for row in rows]
    assert [sample["resps"][0][0].count("Question:") for sample in found.samples] == [0] * 20
    for row, sample in zip(rows, found.samples, strict=True):
        assert sample["exact_match"] == data.grade_gsm8k(row, sample["resps"][0])["exact_match"]
        assert data.grade_gsm8k(row, [row["answer"]]) == {"exact_match": 1.0}
    assert sum(found.cost.finish_reasons.values()) == 20 and "error" not in found.cost.finish_reasons


@needs_shared
def test_the_first_questions_of_mbpp_arrive_whole_and_their_own_programs_pass() -> None:
    file = SHARED / "mbpp.jsonl"
    files = {"mbpp": str(file)}
    found = run(["simsd_mbpp"], files, limit=20, num_fewshot=0, gen_kwargs=SHORT)
    rows = {row["task_id"]: row for row in map(json.loads, file.read_text("utf-8").splitlines())}
    assert [sample["doc"]["task_id"] for sample in found.samples] == list(range(11, 31))
    for sample in found.samples:
        row = rows[sample["doc"]["task_id"]]
        assert row["text"] in prompt(sample) and all(test in prompt(sample) for test in row["test_list"])
        assert "[DONE]" not in sample["resps"][0][0]
    for index in range(11, 15):  # a process each
        assert data.grade_mbpp(rows[index], [rows[index]["code"]]) == {"pass_at_1": 1.0}
    assert "error" not in found.cost.finish_reasons


# ---------------------------------------------------------------------- what cannot be run
@pytest.mark.parametrize("task", ["gsm8k", "mbpp"])
@pytest.mark.parametrize(
    "content", [b"{", b"", b"\n", b"[1]\n", b'{"other": 1}\n', b'{"question": 5, "text": 5}\n', b"\xff\xfe\n"]
)
def test_a_file_that_is_no_data_is_one_sentence(tmp_path: Path, task: str, content: bytes) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        find_tasks([f"simsd_{task}"], None, {task: str(file)})
    said = str(caught.value)
    assert f"simsd_{task}" in said and str(file) in said and "\n" not in said


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"question": "\\ud800", "answer": "1"}', r"\ud800 is half of a character"),
        ('{"question": "x", "answer": 1}', "'answer' is not text"),
        ('{"question": "x"}', "'answer' is missing"),
        ('{"question": "x", ', "not JSON"),
    ],
)
def test_a_line_that_is_no_question_is_named(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"question": "x", "answer": "1"}\n\n' + line + "\n", "utf-8")
    with pytest.raises(ConfigError) as caught:
        find_tasks(["simsd_gsm8k"], None, {"gsm8k": str(file)})
    assert str(caught.value).startswith(f"task simsd_gsm8k cannot be loaded: {file}, line 3: ")
    assert words in str(caught.value) and "pyarrow" not in str(caught.value)


@pytest.mark.parametrize("names", [["simsd_gsm8k"], ["simsd_mbpp"], ["simsd_gsm8k", "simsd_mbpp"]])
def test_without_a_network_the_sentence_says_which_task_and_how_to_give_a_file(names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        find_tasks(names)
    said = str(caught.value)
    assert said.startswith(f"task {names[0]} cannot be loaded: its data set cannot be reached over the network")
    assert said.endswith(f"take a local file: --tasks {names[0]} --data {names[0].removeprefix('simsd_')}=FILE")


def test_the_task_that_cannot_be_loaded_is_the_one_that_is_named(tmp_path: Path) -> None:
    files = {"gsm8k": str(gsm8k_shaped(tmp_path))}
    with pytest.raises(ConfigError, match=r"^task simsd_mbpp cannot be loaded"):
        find_tasks(["simsd_gsm8k", "simsd_mbpp"], None, files)
    (tmp_path / "broken.yaml").write_text("task: broken\ncustom_dataset: !function no.such\n", "utf-8")
    with pytest.raises(ConfigError, match="broken"):
        find_tasks(["simsd_gsm8k", "broken"], tmp_path, files)


@pytest.mark.parametrize("name", ["gsm9k", "mbpp", "", "simsd_gsm8k"])
def test_data_that_no_task_asks_for_is_refused(tmp_path: Path, name: str) -> None:
    file = str(gsm8k_shaped(tmp_path))
    with pytest.raises(ConfigError, match=f"--data names '{name}', which none of the tasks asks for"):
        find_tasks(["simsd_gsm8k"], None, {name: file})


def test_a_task_of_the_users_own_may_ask_for_data_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "source.py").write_text(
        "from simsd.evaluation.tasks.data import gsm8k\ndef mine(mine, **_):\n    return gsm8k(mine)\n", "utf-8"
    )
    text = "include: {own}/simsd_gsm8k.yaml\ntask: mine\ncustom_dataset: !function source.mine\n"
    (tmp_path / "mine.yaml").write_text(text.format(own=OWN_TASKS), "utf-8")
    found = run(["mine"], {"mine": str(gsm8k_shaped(tmp_path))}, tmp_path, limit=1, gen_kwargs=SHORT)
    assert (found.results[0].questions, found.asked, found.answered, found.failed) == (1, 1, 1, 0)


def test_a_task_that_runs_code_unguarded_is_refused(tmp_path: Path) -> None:
    text = "include: {own}/simsd_mbpp.yaml\ntask: bold\nunsafe_code: true\n"
    (tmp_path / "bold.yaml").write_text(text.format(own=OWN_TASKS), "utf-8")
    with pytest.raises(ConfigError, match="task bold runs the model's code unguarded"):
        run(["bold"], {"mbpp": str(mbpp_shaped(tmp_path))}, tmp_path)


def test_more_examples_than_there_are_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot run simsd_mbpp: .*fewshot samples requested exceeds the 3"):
        run(["simsd_mbpp"], {"mbpp": str(mbpp_shaped(tmp_path))}, num_fewshot=4)


def test_an_include_path_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no folder"):
        find_tasks(["simsd_gsm8k"], tmp_path / "missing")


# ---------------------------------------------------------------------- the harness's own command line
def write_choices(folder: Path) -> None:
    (folder / "choice.yaml").write_text(
        "task: choice\ndataset_path: json\ndataset_kwargs: {data_files: {test: choice.jsonl}}\ntest_split: test\n"
        'output_type: multiple_choice\ndoc_to_text: "{{q}}"\ndoc_to_choice: "{{c}}"\ndoc_to_target: a\n',
        "utf-8",
    )
    start = "<|im_start|>user\nWhat is the capital of {}?<|im_end|>\n<|im_start|>assistant"
    choices = ["\nDoha", "\nOslo", "\nParis"]
    countries = ["Qatar", "Norway", "France"]
    rows = [{"q": start.format(country), "c": choices, "a": index} for index, country in enumerate(countries)]
    write(folder / "choice.jsonl", rows)


def harness(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str, tasks: str = "./choice.yaml") -> None:
    """`python -m simsd.evaluation ARGUMENTS`, without the thousands of task files that the harness would read."""
    few = partialmethod(TaskManager.__init__, include_defaults=False)
    monkeypatch.setattr(TaskManager, "__init__", few)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["lm_eval", "--model", "simsd", "--tasks", tasks, *arguments])
    main()


def test_the_harnesss_command_line_knows_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_choices(tmp_path)
    harness(monkeypatch, tmp_path, "--model_args", "pretrained=tiny,method=none", "--output_path", "out")
    (results,) = (tmp_path / "out").rglob("results_*.json")
    written = json.loads(results.read_text("utf-8"))
    assert written["results"]["choice"]["acc,none"] == 1
    assert written["config"]["simsd"]["options"]["method"] == "none"


def test_a_wrong_model_argument_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_choices(tmp_path)
    with pytest.raises(SystemExit) as left:
        harness(monkeypatch, tmp_path, "--model_args", "pretrained=tiny,metod=none")
    assert left.value.code == 2
    assert "simsd: unknown option 'metod'" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["alone", "a folder", "a config"])
def test_the_packages_own_tasks_are_found_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Beside the user's own, wherever their folder is named."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "plain.yaml").write_text(PLAIN.format(own=OWN_TASKS, task="gsm8k", field="question"), "utf-8")
    tasks, more = "simsd_gsm8k", ["--limit", "1", "--metadata", f"gsm8k={gsm8k_shaped(tmp_path)}"]
    if place == "a folder":
        tasks, more = "simsd_gsm8k,plain_gsm8k", [*more, "--include_path", str(own)]
    if place == "a config":
        (tmp_path / "run.yaml").write_text(f"include_path: {own}\n", "utf-8")
        tasks, more = "simsd_gsm8k,plain_gsm8k", [*more, "--config", "run.yaml"]
    flags = ("--model_args", "pretrained=tiny,method=none,max_length=128", "--gen_kwargs", "max_gen_toks=4")
    harness(monkeypatch, tmp_path, *flags, "--output_path", "out", *more, tasks=tasks)
    (results,) = (tmp_path / "out").rglob("results_*.json")
    assert set(json.loads(results.read_text("utf-8"))["results"]) == set(tasks.split(","))


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ("nothing", "there is no task 'nothing'"),
        ("nothing,simsd_gsm8k", "there is no task 'nothing'"),
        ("missing.yaml", "there is no task"),
        ("simsd_gsm8k", "cannot run this (ConnectionError: Couldn't reach 'openai/gsm8k'"),
        ("./broken.yaml", "cannot run this ("),
    ],
)
def test_what_the_harness_cannot_run_is_one_sentence_there_too(
    tasks: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.yaml").write_text("task: broken\ncustom_dataset: !function no.such\n", "utf-8")
    with pytest.raises(SystemExit) as left:
        harness(monkeypatch, tmp_path, "--model_args", "pretrained=tiny,method=none", tasks=tasks)
    assert left.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("simsd: ") and message in last
