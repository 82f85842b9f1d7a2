"""Programs that decode the same prompts, side by side: what is counted, and that one that fails harms no other."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from benchmarks.peers import ours
from benchmarks.peers.compare import Asked, Question, Result, compare, counted, main, questions
from benchmarks.peers.peer import Answer, Peer, PeerError, Spec
from simsd.errors import ConfigError
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
    parts = [[Question(str(n), [n]) for n in range(first, first + 3)] for first in range(4, 4 + 3 * repeats, 3)]
    settings = {"max_tokens": 7, "threads": 1, "timeout": timeout, "progress": False}
    return compare(specs, Asked([Question("3", [3])], parts), TOKENIZER, STOP, **settings)  # type: ignore[arg-type]


READY = "print('{\"ready\": true}')"
LOOP = f"""
import json, sys, time
{READY}
for line in sys.stdin:
    asked = json.loads(line)
    number, ids = asked["number"], asked["ids"]
"""
ONE = "    print(json.dumps({'number': number, 'ids': [1]}))\n"


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
    assert [text[0] for text in one.texts] == [14, 15, 16, 17, 18, 19]
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
        ("raise SystemExit('no weights here')", "x has ended with exit status 1; its last words: no weights here"),
        ("pass", "x has ended with exit status 0 without a word"),
        ("import os; os.kill(os.getpid(), 11)", "x has ended by SIGSEGV without a word"),
        (f"{READY}; input(); import time; time.sleep(60)", "x did not answer within 2 s"),
        (f"{READY}; input(); print('42'); import time; time.sleep(60)", "did not answer within 2 s; it printed '42'"),
        (
            f'{READY}; input(); print(\'{{"number": 1, "ids": [1.5]}}\')',
            "neither a list of whole numbers as ids nor a text",
        ),
        (f'{READY}; input(); print(\'{{"number": 1, "ids": [100]}}\')', "x answered 100, which is no token"),
        (f'{READY}; input(); print(\'{{"number": 1, "ids": [5, -1]}}\')', "x answered -1, which is no token"),
        ("print('{\"ready\": false}'); input()", "did not say that it is ready"),
        (f"{READY}; input(); print('{{broken')", "not JSON"),
        (f"{READY}; input(); print('{{\"a\":' + '[' * 100000)", "not JSON"),
        ("print('{\"ids\": [1]}'); input()", "did not say that it is ready"),
        (f"{READY}; input(); print('{{\"ids\": [1]}}'); input()", 'no "number": 1, the question\'s, in '),
        (f"{READY}; input(); import os, time; os.close(1); time.sleep(60)", "x has closed its input or output"),
        (f"{READY}; input(); import os; os.write(1, b'{{\"a\": \\xff}}\\n'); input()", "not JSON"),
    ],
)
def test_a_peer_that_fails_is_out_and_harms_no_other(counting: str, program: str, sentence: str) -> None:
    good, bad = run(Spec.of_callable(f"a={counting}"), python("x", program), timeout=2.0)
    assert good.failure is None and len(good.texts) == 3
    assert bad.failure is not None and sentence in bad.failure
    assert bad.to_dict(good)["ratio"] is None


@pytest.mark.parametrize(
    "program",
    [
        LOOP + ONE + "    time.sleep(0.1)\n" + ONE,
        LOOP + ONE + ONE,
        LOOP + ONE.replace(": number", ": number + 1"),
        LOOP + ONE.replace(": number", ": None"),
        LOOP + "    print(json.dumps({'ids': [1]}))\n",
        LOOP + '    sys.stdout.write(\'{"number": %d, "ids": [1]}\\n\' % number * (1 + (ids == [6])))\n',
    ],
    ids=["twice, late", "twice", "another number", "no number", "none at all", "more at the end"],
)
def test_a_line_that_answers_no_question_puts_its_peer_out(counting: str, program: str) -> None:
    bad, good = run(python("x", program), Spec.of_callable(f"a={counting}"))
    assert good.failure is None and len(good.texts) == 3
    assert bad.failure is not None and ('no "number": ' in bad.failure or "nobody asked for" in bad.failure)


def test_a_prompt_is_no_answer(counting: str) -> None:
    asked = [Question("", list(range(20, 40)))]
    specs = (
        python("x", LOOP + "    print(json.dumps({'number': number, 'ids': ids + [1]}))\n"),
        Spec.of_callable(f"a={counting}"),
    )
    settings = {"max_tokens": 30, "threads": 1, "timeout": 20.0, "progress": False}
    echo, good = compare(specs, Asked([], [asked]), TOKENIZER, STOP, **settings)  # type: ignore[arg-type]
    assert echo.failure == "x answered with the prompt in front; only what comes after it is asked for"
    assert good.failure is None


@pytest.mark.parametrize("program", [f"{READY}; input(); exec('while True: pass')", "exec('while True: pass')"])
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for a process there")
def test_a_peer_that_is_out_takes_no_more_time_from_the_others(program: str, tmp_path: Path) -> None:
    """The next one answers with whether the first one's process is still there."""
    note = tmp_path / "pid"
    spinning = python("x", f"import os; print(os.getpid(), file=open({str(note)!r}, 'w'), flush=True); {program}")
    there = f"    there = os.path.exists('/proc/' + open({str(note)!r}).read().strip())\n"
    reply = "    print(json.dumps({'number': number, 'ids': [3 + there]}))\n"
    bad, good = run(spinning, python("a", f"import os{LOOP}{there}{reply}"), timeout=1.0)
    assert bad.failure == "x did not answer within 1 s"
    assert good.texts == [[3]] * 3


def test_a_peer_that_does_not_read_is_out_after_its_time(counting: str) -> None:
    much = [Question("", [1] * 100_000)]
    specs = (python("x", f"{READY}; import time; time.sleep(60)"), Spec.of_callable(f"a={counting}"))
    settings = {"max_tokens": 7, "threads": 1, "timeout": 2.0, "progress": False}
    deaf, good = compare(specs, Asked(much, [much]), TOKENIZER, STOP, **settings)  # type: ignore[arg-type]
    assert deaf.failure == "x did not read its question within 2 s"
    assert good.texts == [list(range(11, 18))]


def test_texts_of_all_repeats_are_compared(counting: str) -> None:
    loop = LOOP + "    print(json.dumps({'number': number, 'ids': [10 + min(ids[0], 7) + i for i in range(7)]}))\n"
    one, other = run(Spec.of_callable(f"a={counting}"), python("x", loop), repeats=2)
    assert other.failure is None
    assert other.to_dict(one)["same"] == 4 / 6


@pytest.mark.parametrize("repeats", [1, 3])
def test_no_question_is_asked_twice_whatever_the_suites_hold(tmp_path: Path, repeats: int) -> None:
    lines = [json.dumps({"prompt": f"question {n}"}) for n in (1, 1, 2, 3, 2, 4, 5, 6, 7, 8)]
    (tmp_path / "own.jsonl").write_text("\n".join(lines), "utf-8")
    names = ["math", str(tmp_path / "own.jsonl"), "trivia"]
    tokenizer = Tokenizer.from_folder(embedded("tiny"))
    asked = questions(tokenizer, names, 2, repeats)
    assert [len(part) for part in asked.repeats] == [6] * repeats
    every = [tuple(question.ids) for part in (asked.first, *asked.repeats) for question in part]
    assert len(set(every)) == len(every) == 3 + 6 * repeats
    with pytest.raises(ConfigError, match=r"own.jsonl has 8 prompts .* are 10: none is asked twice; give a smaller"):
        questions(tokenizer, names, 3, 3)


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
        (Answer([5, 6, 2, 7], None, 0.0), [5, 6]),
        (Answer([2], None, 0.0), []),
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
    with pytest.raises(ArgumentTypeError, match="not of the form"):
        Spec.of_callable(text)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--callable", "x=call.py"], "'x=call.py' is not of the form NAME=FILE.py:FUNCTION KEY=VALUE ..."),
        (["--command", "x=a 'b"], "No closing quotation"),
        (["--repeats", "0"], "'0' must be a whole number of at least 1"),
        (["--timeout", "-1"], "'-1' must be a number of seconds above 0"),
        (["--timeout", "nan"], "'nan' must be a number of seconds above 0"),
    ],
)
def test_what_cannot_be_meant_is_said(flags, said, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["compare", *flags])
    with pytest.raises(SystemExit):
        main()
    assert said in capsys.readouterr().err


def test_simsd_takes_nothing_over_from_prompt_to_prompt_unless_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bool] = []
    monkeypatch.setattr(ours, "LLM", lambda *_, **options: made.append(options["prefix_caching"]))
    ours.load()
    ours.load(prefix_caching=True)
    assert made == [False, True]


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
