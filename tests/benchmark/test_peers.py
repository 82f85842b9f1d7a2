"""Programs that decode the same prompts, side by side: what is counted, and that one that fails harms no other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers.compare import Question, Result, compare, counted
from benchmarks.peers.peer import Answer, Peer, PeerError, Spec
from simsd.models.loader import embedded
from simsd.models.tokenizer import IdTokenizer, Tokenizer

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = IdTokenizer(100)
STOP = (2,)

COUNTING = """
def load(start=10, print_much=False, fail_at=None):
    def answer(ids, max_tokens):
        if print_much:
            print('{"ids": [1, 2, 3]}')
        if ids[0] == fail_at:
            raise ValueError("not this one")
        return [start + ids[0] + step for step in range(max_tokens)]
    return answer
"""


@pytest.fixture
def counting(tmp_path: Path) -> str:
    path = tmp_path / "counting.py"
    path.write_text(COUNTING, "utf-8")
    return f"{path}:load"


def run(*specs: Spec, repeats: int = 1, timeout: float = 20.0) -> list[Result]:
    asked = [Question(str(n), [n]) for n in (4, 5, 6)]
    settings = {"max_tokens": 7, "repeats": repeats, "threads": 1, "timeout": timeout, "progress": False}
    return compare(specs, asked, TOKENIZER, STOP, **settings)  # type: ignore[arg-type]


def python(name: str, program: str) -> Spec:
    return Spec(name, [sys.executable, "-u", "-c", program])


def test_each_answer_is_asked_once_a_repeat_and_compared_with_the_first_peers(counting: str) -> None:
    one, same, other = run(
        *(
            Spec.of_callable(f"{name}={counting} {more}")
            for name, more in zip("abc", ("", "", "start=11"), strict=True)
        ),
        repeats=2,
    )
    assert one.tokens == same.tokens == other.tokens == [21, 21]
    assert one.texts[0] == list(range(14, 21))
    assert [result.to_dict(one)["same"] for result in (one, same, other)] == [1.0, 1.0, 0.0]
    ratio = one.to_dict(one)["ratio"]
    assert ratio == {"median": 1.0, "low": 1.0, "high": 1.0}


def test_what_a_function_prints_is_no_answer(counting: str) -> None:
    (found,) = run(Spec.of_callable(f"a={counting} print_much=true"))
    assert found.failure is None
    assert found.texts[1] == list(range(15, 22))


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("raise SystemExit('no weights here')", "x has ended; its last words: no weights here"),
        ("pass", "x has ended without a word"),
        ("print('{\"ready\": true}'); input(); import time; time.sleep(60)", "x did not answer within 2 s"),
        ("print('{\"ready\": true}'); input(); print('{\"ids\": [1.5]}')", "neither ids nor text"),
        ("print('{\"ready\": true}'); input(); print('{broken')", "not JSON"),
        ("print('{\"ids\": [1]}'); input()", "did not say that it is ready"),
    ],
)
def test_a_peer_that_fails_is_out_and_harms_no_other(counting: str, program: str, sentence: str) -> None:
    good, bad = run(Spec.of_callable(f"a={counting}"), python("x", program), timeout=2.0)
    assert good.failure is None and len(good.texts) == 3
    assert bad.failure is not None and sentence in bad.failure
    assert bad.to_dict(good)["ratio"] is None


def test_a_peer_that_fails_in_the_middle_has_no_figures(counting: str) -> None:
    good, bad = run(Spec.of_callable(f"a={counting}"), Spec.of_callable(f"b={counting} fail_at=6"))
    assert bad.failure == "b: ValueError: not this one"
    assert good.to_dict(good)["same"] == 1.0
    assert bad.to_dict(good)["tokens_per_second"] is None
    assert good.to_dict(bad)["ratio"] is None  # nothing to compare with


def test_a_program_that_is_not_there_is_told() -> None:
    with pytest.raises(PeerError, match="cannot be started"):
        Peer(Spec("x", ["/no/such/program"]), 1)


@pytest.mark.parametrize(
    ("answer", "ids"),
    [
        (Answer([5, 6, 2, 7], None, 0.0), [5, 6, 2]),
        (Answer([5, 6, 7], None, 0.0), [5, 6, 7]),
        (Answer(list(range(10, 30)), None, 0.0), list(range(10, 18))),
        (Answer([], None, 0.0), []),
    ],
)
def test_tokens_are_counted_up_to_the_first_stop_id(answer: Answer, ids: list[int]) -> None:
    assert counted(answer, TOKENIZER, STOP, 8) == ids


def test_an_answer_in_words_is_counted_in_the_checkpoints_tokens() -> None:
    tokenizer = Tokenizer.from_folder(embedded("tiny"))
    text = "The answer is 42."
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert counted(Answer(None, text, 0.0), tokenizer, STOP, 100) == ids
    assert counted(Answer(None, text, 0.0), tokenizer, STOP, 2) == ids[:2]


@pytest.mark.parametrize("text", ["", "name", "name=", "=x", "name=file.py", "name=file.py:f word"])
def test_a_callable_must_be_named_in_full(text: str) -> None:
    with pytest.raises(ValueError, match="not of the form"):
        Spec.of_callable(text)


def test_simsd_itself_is_a_peer_whose_methods_write_the_same() -> None:
    ours = "benchmarks/peers/ours.py:load"
    words = ["--callable", f"ordinary={ours} method=none", "--callable", f"exact={ours} num_speculative_tokens=8"]
    few = ["--suite", "trivia", "--limit", "2", "--repeats", "1", "--max-tokens", "12", "--json"]
    command = [sys.executable, "-m", "benchmarks.peers.compare", *words, *few]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    ordinary, exact = json.loads(found.stdout)["peers"]
    assert exact["same"] == 1.0
    assert exact["tokens"] == ordinary["tokens"] > 0
