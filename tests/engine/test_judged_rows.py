"""The rows that a layout names are the rows whose logits come back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from simsd.core.layout import block_causal
from simsd.engine.runner import Runner
from tests.hash_model import HashModel

VOCAB, MASK, SIZE = 11, 10, 2


@pytest.mark.parametrize("judge", [[0, 1, 2, 3], [2, 3, 2, 3], [3, 2, 1, 0], [1], [0, 0, 1, 1, 3, 3]])
def test_logits_are_those_of_the_judged_rows_in_their_order(judge):
    text = [3, 1, 4, 1]
    runner = Runner(HashModel(VOCAB), MASK, SIZE, 100)
    layout = replace(block_causal(torch.tensor([text]), torch.tensor([0]), SIZE), judge=torch.tensor([judge]))
    expected = runner.model.plain_logits(text, SIZE, MASK)[judge]  # type: ignore[attr-defined]
    assert torch.equal(runner.logits(layout, [0], [0])[0], expected)
