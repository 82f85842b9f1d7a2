from __future__ import annotations

import json
from pathlib import Path

import pytest

from simsd.benchmark.journal import Journal
from simsd.errors import ConfigError
from tests.benchmark.support import EXACT, NONE, sample

RUN = {"model": "big", "cells": ["a", "b"], "settings": {"repeats": 3}}
SAMPLES = [sample(NONE), sample(EXACT, 0, 1, answers=[("ä", None), ("b", False)], seconds=0.25)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A journal with `SAMPLES`."""
    path = tmp_path / "new folder" / "run.jsonl"
    journal = Journal(path, RUN)
    assert not journal.resumed
    for one in SAMPLES:
        journal.add(one)
    return path


def test_samples_come_back(file: Path) -> None:
    journal = Journal(file, RUN)
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
    journal = Journal(file, RUN)
    assert journal.samples == SAMPLES[:1]
    journal.add(SAMPLES[1])
    assert Journal(file, RUN).samples == SAMPLES


def test_another_run_is_refused_and_left_alone(file: Path) -> None:
    before = file.read_bytes()
    with pytest.raises(ConfigError, match=r"another run \(cells, model differ\)"):
        Journal(file, {**RUN, "model": "small", "cells": ["a"]})
    assert file.read_bytes() == before


def test_restart_throws_away(file: Path) -> None:
    assert Journal(file, {"model": "small"}, restart=True).samples == []
    assert not Journal(file, {"model": "small"}).resumed


@pytest.mark.parametrize(
    "content", [b"hello\n", b'{"run": {}}\n[1]\n', b'{"model": 1}\n', b'{"run": {}}\n{"cell": 1}\n', b"\xff\n", b"{"]
)
def test_what_is_no_journal_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"notes\.txt is not a journal"):
        Journal(path, RUN)
    assert path.read_bytes() == content


def test_a_folder_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        Journal(tmp_path, RUN)


def test_each_sample_is_a_line_that_is_there_at_once(file: Path) -> None:
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert lines[0] == {"run": RUN}
    assert [line["cell"] for line in lines[1:]] == [NONE.key, EXACT.key]
