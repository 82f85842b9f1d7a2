"""Attention against the formula, on every path that a CPU takes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from simsd.models import attention
from simsd.models.attention import attend, fold_bias


def formula(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    scores = torch.einsum("nhrd,nhkd->nhrk", q.double(), k.double()) / q.shape[-1] ** 0.5
    return (scores + (0 if bias is None else bias.double())).softmax(-1) @ v.double()


def inputs(n: int, rows: int, length: int, dtype: torch.dtype, masked: bool = True) -> tuple:
    torch.manual_seed(rows + length)
    q = torch.randn(n, 2, rows, 16, dtype=dtype)
    cache = torch.randn(2, n, 2, length + 7, 16, dtype=dtype)  # keys and values are views on something longer
    hidden = torch.rand(n, 1, rows, length) < 0.4
    hidden[..., 0] = False
    bias = torch.zeros(n, 1, rows, length, dtype=dtype).masked_fill(hidden, -torch.inf) if masked else None
    return q, cache[0, :, :, :length], cache[1, :, :, :length], bias


CASES = [(torch.float32, 2e-6), (torch.float64, 1e-14), (torch.bfloat16, 2e-2)]


@pytest.mark.parametrize(("dtype", "tolerance"), CASES)
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(("rows", "length"), [(8, 20), (200, 300)])
def test_equals_the_formula(dtype: torch.dtype, tolerance: float, masked: bool, n: int, rows: int, length: int):
    values = inputs(n, rows, length, dtype, masked)
    torch.testing.assert_close(attend(*values).double(), formula(*values), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("masked", [True, False])
def test_a_long_prefill_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch, masked: bool):
    q, k, v, bias = inputs(2, 50, 40, torch.bfloat16, masked)
    whole = attend(q, k, v, bias)
    monkeypatch.setattr(attention, "MOST_SCORES", 1000)
    assert torch.equal(attend(q, k, v, bias), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_that_sees_nothing_for_long_is_still_a_number(dtype: torch.dtype):
    q, k, v, _ = inputs(1, 300, 3000, dtype, masked=False)
    bias = torch.full((1, 1, 300, 3000), -torch.inf, dtype=dtype)
    bias[0, 0, torch.arange(300), torch.arange(300) * 9 + 7] = 0  # one slot each, most of them far behind
    torch.testing.assert_close(attend(q, k, v, bias).double(), formula(q, k, v, bias), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("length", [130, 515, 1040])
def test_a_row_does_not_notice_the_rows_beside_it(dtype: torch.dtype, length: int):
    q, k, v, bias = inputs(1, 200, length, dtype)
    whole = attend(q, k, v, bias)
    for rows in (8, 40, 100):
        part = attend(q[:, :, :rows].contiguous(), k, v, bias[:, :, :rows].contiguous())
        tolerance = 0 if dtype == torch.bfloat16 else 1e-6  # what bfloat16 would round, and so make visible
        torch.testing.assert_close(part, whole[:, :, :rows], atol=tolerance, rtol=0)


def test_hidden_slots_have_no_influence_at_all():
    q, k, v, bias = inputs(1, 8, 20, torch.float32)
    bias[..., 5:9] = -torch.inf
    before = attend(q, k, v, bias)
    k[:, :, 5:9], v[:, :, 5:9] = 1e4, -1e4
    assert torch.equal(attend(q, k, v, bias), before)


def test_bias_is_repeated_for_each_query_head_of_a_group():
    bias = torch.randn(2, 1, 3, 5)
    folded = fold_bias(bias, 4)
    assert folded is not None and folded.shape == (2, 1, 12, 5)
    assert torch.equal(folded.view(2, 4, 3, 5), bias.expand(2, 4, 3, 5))
    assert fold_bias(None, 4) is None
    assert fold_bias(bias, 1) is bias
