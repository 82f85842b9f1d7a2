from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from simsd.llm import Completion
from simsd.tracing.data import trace_data
from simsd.tracing.terminal import show
from tests.cli.fake import round_trace


@pytest.mark.parametrize(
    ("labels", "prefix_length", "told"),
    [
        (["S0"] * 8, 1, "8 rows in 1 group (S0) beside 1 cached token "),
        (["D0"] * 4 + ["M0"] * 4, 12, "8 rows in 2 groups (D0 M0) beside 12 cached tokens "),
    ],
)
def test_what_there_is_one_of_is_told_as_one(labels: list[str], prefix_length: int, told: str) -> None:
    found = round_trace()
    found = replace(found, layout=replace(found.layout, labels=labels, prefix_length=prefix_length))
    completion = Completion("hi", "ok", [111, 107], "stop", [0, 0], trace=[found])
    out = StringIO()
    show(trace_data("hi", completion, chr, {}), Console(file=out, width=100))
    assert told in out.getvalue()
