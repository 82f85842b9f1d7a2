from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simsd.benchmark.journal import Journal, differences
from simsd.errors import ConfigError
from tests.benchmark.support import EXACT, NONE, sample
from tests.small_disk import room

RUN = {"model": "big", "cells": ["a", "b"], "settings": {"repeats": 3}}
SAMPLES = [sample(NONE), sample(EXACT, 0, 1, answers=[("ä", None), ("b", False)], seconds=0.25)]


def kept(path: Path, run: dict[str, Any] = RUN, **more: Any) -> Journal:
    """What a journal holds, which is closed again."""
    with Journal(path, run, **more) as journal:
        return journal


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A journal with `SAMPLES`."""
    path = tmp_path / "new folder" / "run.jsonl"
    with Journal(path, RUN) as journal:
        assert not journal.resumed
        for one in SAMPLES:
            journal.add(one)
    return path


def test_samples_come_back(file: Path) -> None:
    journal = kept(file)
    assert journal.resumed
    assert journal.samples == SAMPLES
    assert journal.places == {(NONE.key, 0, 0), (EXACT.key, 0, 1)}


def test_without_a_file_samples_are_kept_in_memory() -> None:
    journal = Journal(None, RUN)
    journal.add(SAMPLES[0])
    assert (journal.samples, journal.resumed) == (SAMPLES[:1], False)


@pytest.mark.parametrize("cut", [1, 20])
def test_a_line_that_was_not_finished_is_dropped(file: Path, cut: int) -> None:
    file.write_bytes(file.read_bytes()[:-cut])
    with Journal(file, RUN) as journal:
        assert journal.samples == SAMPLES[:1]
        journal.add(SAMPLES[1])
    assert kept(file).samples == SAMPLES


def test_a_first_line_that_was_not_finished_is_written_again(file: Path) -> None:
    file.write_bytes(file.read_bytes().split(b"\n")[0][:-3])
    assert kept(file).samples == []
    assert not kept(file).resumed


def test_each_sample_is_a_line_that_is_there_at_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run", RUN)
    for number, one in enumerate(SAMPLES, start=1):
        journal.add(one)
        first, *lines = map(json.loads, (tmp_path / "run").read_text("utf-8").splitlines())
        assert first == {"journal": "simsd", "run": RUN}
        assert [line["cell"] for line in lines] == [NONE.key, EXACT.key][:number]


# ---------------------------------------------------------------------- another run
def test_another_run_is_refused_and_left_alone(file: Path) -> None:
    before = file.read_bytes()
    with pytest.raises(ConfigError) as caught:
        Journal(file, {**RUN, "model": "small", "settings": {"repeats": 5}, "cells": ["b", "c"]})
    text = str(caught.value)
    for words in ("model: big there and small here", "settings repeats: 3 there and 5 here", "--restart"):
        assert words in text
    assert "cells only there: a, only here: c" in text
    assert file.read_bytes() == before


def test_differences_are_named_with_both_values_and_stay_short() -> None:
    there = {"a": None, "b": {"x": 1, "y": 2}, "cells": [str(n) for n in range(9)], "same": 1, "long": "x" * 500}
    here = {"a": 1.5, "b": {"x": 1, "z": 3}, "cells": ["8"], "same": 1, "long": "y", "model_files": "f"}
    assert differences(there, here) == [
        "a: none there and 1.5 here",
        "b y: 2 there and none here",
        "b z: none there and 3 here",
        "cells only there: 0 and 1 and 6 more, only here: none",
        f"long: {'x' * 77}... there and y here",
        "the files of the model (by name, size, time and contents): none there and f here",
    ]
    assert differences(there, there) == []


def test_restart_throws_away(file: Path) -> None:
    assert kept(file, {"model": "small"}, restart=True).samples == []
    assert not kept(file, {"model": "small"}).resumed
    assert len(file.read_text("utf-8").splitlines()) == 1


STRANGERS = [b"hello\n", b'{"run": {}}\n[1]\n', b'{"prompt": "x"}\n', b"\xff\n", b"{", b"\n", b"PK\x03\x04"]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("content", STRANGERS)
def test_what_is_no_journal_is_refused_and_left_alone(tmp_path: Path, content: bytes, restart: bool) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"notes\.txt is not a journal"):
        Journal(path, RUN, restart=restart)
    assert path.read_bytes() == content


@pytest.mark.parametrize("place", [".", "/dev/null"])
@pytest.mark.parametrize("restart", [False, True])
def test_what_is_no_file_is_no_journal(tmp_path: Path, place: str, restart: bool) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        Journal(tmp_path / place, RUN, restart=restart)


# ---------------------------------------------------------------------- damage
def change(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda row: row | values


def in_cost(value: Any) -> Callable[[dict[str, Any]], Any]:
    return costs(seconds=value)


def costs(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda row: row | {"cost": row["cost"] | values}


def idle(**values: Any) -> Callable[[dict[str, Any]], Any]:
    """Nothing was decoded, but for `values`."""
    return lambda row: in_answer(tokens=0)(costs(target_forwards=0, **values)(row))


def in_answer(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda row: row | {"answers": [row["answers"][0] | values]}


def without(*names: str) -> Callable[[dict[str, Any]], Any]:
    return lambda row: {name: value for name, value in row.items() if name not in names}


DAMAGE: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    *((lambda row, value=value: value, "not an object") for value in (None, 3, [1], "x")),
    *((without(name), name) for name in ("cell", "repeat", "group", "answers", "cost", "peak_bytes")),
    *((change(**{name: None}), name) for name in ("cell", "repeat", "group", "answers", "cost", "peak_bytes")),
    *((change(**{name: value}), name) for name in ("repeat", "group", "peak_bytes") for value in (-1, 1.5, "1", True)),
    *((change(cell=value), "cell") for value in (3, ["a"], {})),
    *((change(answers=value), words) for value, words in (({}, "answers"), ([None], "object"), ([[1]], "object"))),
    *((change(cost=value), "cost") for value in ([], "1", 3)),
    (change(cost={}), "rounds"),
    *((in_cost(value), "seconds") for value in (None, "1", -0.5, True, [], 10**400, float("nan"), float("inf"))),
    *((in_answer(tokens=value), "tokens") for value in (None, -1, 1.5, "9", 10**400)),
    *((in_answer(text=value), "text") for value in (None, 3)),
    (in_answer(finish=None), "finish"),
    *((in_answer(right=value), "right") for value in (0, "yes", [])),
    (costs(target_forwards=0), "though 'tokens' is 10"),
    *((idle(**{name: 3}), f"'target_forwards' is 0, though '{name}' is 3") for name in ("rounds", "query_tokens")),
    *((idle(**{name: 3}), f"though '{name}' is 3") for name in ("draft_forwards", "drafted_tokens", "verify_seconds")),
    (costs(rounds=2), "'rounds' is 2, more than 'target_forwards', 1"),
    (costs(drafted_tokens=3, accepted_tokens=4), "'accepted_tokens' is 4, more than 'drafted_tokens', 3"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGE)
def test_a_damaged_value_is_named_with_its_line(
    file: Path, damage: Callable[[dict[str, Any]], Any], words: str
) -> None:
    first, one, two = file.read_text("utf-8").splitlines()
    damaged = json.dumps(damage(json.loads(one)))
    file.write_text("\n".join([first, two, damaged, one]) + "\n", "utf-8")
    before = file.read_bytes()
    with pytest.raises(ConfigError) as caught:
        Journal(file, RUN)
    assert str(caught.value).startswith(f"{file}, line 3: ")
    assert words in str(caught.value) and "--restart" in str(caught.value)
    assert file.read_bytes() == before
    assert kept(file, restart=True).samples == []


def test_a_sample_without_a_round_is_a_sample(file: Path) -> None:
    first, one, _ = file.read_text("utf-8").splitlines()
    file.write_text("\n".join([first, json.dumps(idle(prefill_tokens=4)(json.loads(one)))]) + "\n", "utf-8")
    assert [sample.cost["prefill_tokens"] for sample in kept(file).samples] == [4]


@pytest.mark.parametrize("line", [b"", b"{", b"\xff", b"[" * 100_000 + b"]" * 100_000, b'{"a": ' + b"9" * 9000 + b"}"])
@pytest.mark.parametrize("number", [2, 3])
def test_a_line_that_is_no_json_is_named(file: Path, line: bytes, number: int) -> None:
    lines = file.read_bytes().splitlines()
    lines[number - 1] = line
    file.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(ConfigError, match=f"line {number}: it is n"):
        Journal(file, RUN)


@pytest.mark.parametrize(
    "first", ['{"journal": "simsd"}', '{"journal": "simsd", "run": [1]}', '{"journal": "simsd", "run"']
)
def test_a_first_line_that_says_nothing_is_named(file: Path, first: str) -> None:
    file.write_text(first + "\n", "utf-8")
    with pytest.raises(ConfigError, match="line 1: it"):
        Journal(file, RUN)


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        ({SAMPLES[0].place: (True,)}, "line 3: its cell, repeat and group"),
        ({SAMPLES[0].place: (True,), SAMPLES[1].place: (False,)}, "line 3: its answers"),
        ({SAMPLES[0].place: (False,), SAMPLES[1].place: (False, True)}, "line 2: its answers"),
    ],
)
def test_samples_that_are_not_of_the_run_are_named(file: Path, expected: Any, words: str) -> None:
    assert kept(file, expected={SAMPLES[0].place: (True,), SAMPLES[1].place: (False, True)}).samples == SAMPLES
    with pytest.raises(ConfigError, match=words):
        Journal(file, RUN, expected=expected)


# ---------------------------------------------------------------------- others, and the disk
@pytest.mark.parametrize("restart", [False, True])
def test_a_file_in_use_is_refused_and_left_alone(file: Path, restart: bool) -> None:
    where = f"Path({str(file)!r}), {RUN!r}, restart={restart}"
    code = f"from pathlib import Path; from simsd.benchmark.journal import Journal; Journal({where})"
    with Journal(file, RUN) as journal:
        before = file.read_bytes()
        with pytest.raises(ConfigError, match="is in use by another run"):
            Journal(file, RUN, restart=restart)
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "is in use by another run" in other.stderr
        assert file.read_bytes() == before
        journal.add(sample(NONE, 1))
    assert len(kept(file).samples) == 3


@pytest.mark.parametrize("more", [0, 1, 50])
def test_a_full_disk_costs_the_sample_that_found_no_room_alone(file: Path, more: int) -> None:
    before = file.read_bytes()
    with Journal(file, RUN) as journal:
        with room(len(before) + more), pytest.raises(OSError, match=r"kept in .*run\.jsonl: 2; make room"):
            journal.add(sample(NONE, 1))
        assert file.read_bytes() == before
        assert journal.samples == SAMPLES
        journal.add(sample(NONE, 1))
    assert len(kept(file).samples) == 3


def test_a_disk_without_room_for_the_first_line_leaves_nothing_half(tmp_path: Path) -> None:
    with room(10), pytest.raises(ConfigError, match="cannot be used"):
        Journal(tmp_path / "run", RUN)
    assert (tmp_path / "run").read_bytes() == b""
    assert kept(tmp_path / "run").samples == []
