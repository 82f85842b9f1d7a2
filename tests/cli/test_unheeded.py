from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from simsd.cli.unheeded import by_device, by_method
from simsd.engine.options import DecodingOptions
from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"method": "none", "num_speculative_tokens": 8}, "--num-speculative-tokens changes nothing: --method none"),
        ({"method": "none", "drafter": "lookup", "draft_steps": 2}, "--drafter and --draft-steps change nothing"),
        ({"method": "none", "draft_ahead": True}, "--draft-ahead changes nothing: --method none"),
        ({"method": "simsd", "draft_ahead": True}, "--draft-ahead changes nothing: --method simsd"),
        ({"method": "exact-draft-order", "draft_ahead": True}, "--draft-ahead changes nothing"),
        ({"drafter": "self", "draft_ahead": True}, "--draft-ahead changes nothing: --drafter self"),
        ({"drafter": "lookup", "draft_steps": 2}, "--draft-steps changes nothing: --drafter lookup"),
        ({"confidence_threshold": 0.5}, "--confidence-threshold changes nothing: --remasking-strategy is low_conf"),
        ({"method": "none", "eb_threshold": 0.5, "remasking_strategy": "random"}, "--eb-threshold changes nothing"),
    ],
    ids=str,
)
def test_what_changes_nothing_is_told_once(given: dict[str, Any], told: str) -> None:
    known = {name: value for name, value in given.items() if name != "draft_ahead"}
    (sentence,) = by_method(given, DecodingOptions(**known).resolve(has_draft_model=True))
    assert sentence.startswith(told)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"method": "none"},
        {"method": "none", "confidence_threshold": 0.5, "remasking_strategy": "low_confidence_dynamic"},
        {"draft_ahead": True},
        {"draft_ahead": True, "drafter": "model", "num_speculative_tokens": 8, "draft_steps": 2},
        {"method": "simsd", "draft_ahead": False, "num_speculative_tokens": "auto"},
        {"drafter": "self", "num_speculative_tokens": 4, "states": "chain"},
        {"eb_threshold": 0.5, "remasking_strategy": "entropy_bounded"},
    ],
    ids=str,
)
def test_what_is_heeded_is_not(given: dict[str, Any]) -> None:
    known = {name: value for name, value in given.items() if name != "draft_ahead"}
    assert by_method(given, DecodingOptions(**known).resolve(has_draft_model=True)) == []


def test_graphs_are_of_a_gpu() -> None:
    (sentence,) = by_device({"enforce_eager": True}, torch.device("cpu"))
    assert sentence.startswith("--enforce-eager changes nothing")
    assert by_device({"enforce_eager": True}, torch.device("cuda:0")) == []
    assert by_device({}, torch.device("cpu")) == []


def test_a_line_on_standard_error_tells_it_and_nothing_else_changes(run: Run) -> None:
    result = run("generate", "ab", "--json", "--method", "none", "--num-speculative-tokens", "8", "--enforce-eager")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["text"] == "AB"
    assert [line.split(" nothing: ")[0] for line in result.stderr.splitlines()] == [
        "simsd: --num-speculative-tokens changes",
        "simsd: --enforce-eager changes",
    ]


def test_where_several_methods_run_only_the_device_speaks(run: Run) -> None:
    flags = ("--draft-ahead", "--enforce-eager")  # ahead is for one of the methods
    result = run("demo", "--questions", "1", *flags)
    notes = [line for line in result.stderr.splitlines() if line.startswith("simsd: ")]
    assert notes == ["simsd: --enforce-eager changes nothing: on a CPU no graphs are recorded."]
