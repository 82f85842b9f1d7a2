"""What the check of a GPU calls wrong."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gpu_check import failures, main

RIGHT: dict[str, Any] = {"schedule": "low_confidence_static", "temperature": 0.0, "sequences": 8, "same_text": 1.0}
REPLAYED: dict[str, Any] = {"method": "exact", "max_num_seqs": 1, "same_text": True, "graphs": 4, "replays": 90}


def test_nothing_is_wrong_with_texts_that_agree_and_graphs_that_ran():
    assert failures([RIGHT], [REPLAYED], cuda=True) == []


@pytest.mark.parametrize(
    ("check", "graph", "said"),
    [
        ({"same_text": 0.95}, {}, "exact is not ordinary decoding: schedule low_confidence_static, temperature 0.0"),
        ({}, {"same_text": False}, "another text with CUDA graphs: method exact, max_num_seqs 1"),
        ({}, {"graphs": 0, "replays": 0}, "no CUDA graph was replayed: method exact, max_num_seqs 1"),
    ],
)
def test_whatever_is_wrong_is_named(check, graph, said):
    (found,) = failures([RIGHT, RIGHT | check], [REPLAYED, REPLAYED | graph], cuda=True)
    assert found.startswith(said)


def test_where_there_are_no_graphs_none_is_missed():
    assert failures([RIGHT], [REPLAYED | {"graphs": 0, "replays": 0}], cuda=False) == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--limit", "0"], "'0' must be a whole number of at least 1"),
        (["--dtype", "int8"], "invalid choice: 'int8'"),
        (["--device", "tpu"], "error: "),
    ],
)
def test_what_cannot_be_meant_is_said_before_any_work(flags, said, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu_check", *flags])
    try:
        code = main()
    except SystemExit as left:  # argparse
        code = left.code
    assert code == 2
    assert said in capsys.readouterr().err
