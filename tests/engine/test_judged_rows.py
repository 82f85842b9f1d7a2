"""The rows that a layout names are the rows whose logits come back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from simsd.core.layout import block_causal
from simsd.core.prefix import Known
from simsd.engine import verify
from simsd.engine.options import SamplingParams
from simsd.engine.runner import Runner
from tests.hash_model import HashModel
from tests.tiny import Request, decode, engine, prompt_of, tiny_model

VOCAB, MASK, SIZE = 11, 10, 2


@pytest.mark.parametrize("judge", [[0, 1, 2, 3], [2, 3, 2, 3], [3, 2, 1, 0], [1], [0, 0, 1, 1, 3, 3]])
def test_logits_are_those_of_the_judged_rows_in_their_order(judge):
    text = [3, 1, 4, 1]
    runner = Runner(HashModel(VOCAB), MASK, SIZE, 100)
    layout = replace(block_causal(torch.tensor([text]), torch.tensor([0]), SIZE), judge=torch.tensor([judge]))
    expected = runner.model.plain_logits(text, SIZE, MASK)[judge]  # type: ignore[attr-defined]
    assert torch.equal(runner.logits(layout, Known([0], [0]))[0], expected)


def test_ordinary_decoding_runs_the_block_alone_also_where_nothing_is_trimmed(monkeypatch):
    """On an accelerator shapes are fixed and unused copies stay: the baseline must not carry any."""
    monkeypatch.setattr(verify, "trim", lambda states: states)
    found = decode(engine(tiny_model(), 4), [Request(prompt_of(8, 0), SamplingParams(max_tokens=4))])[0]
    assert found.stats.query_tokens == 4 * found.stats.target_forwards
