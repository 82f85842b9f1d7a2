"""The packed linear layer equals the plain one, row by row, and steps aside where it cannot be used."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from simsd.models import linear
from simsd.models.linear import Linear, kernels_of, packing


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float64, 1e-13)]
)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 33, 200])
def test_equals_the_exact_product_to_rounding(dtype: torch.dtype, tolerance: float, bias: bool, rows: int):
    torch.manual_seed(rows)
    weight = torch.randn(70, 50, dtype=dtype) / 50**0.5
    offset = torch.randn(70, dtype=dtype) if bias else None
    x = torch.randn(rows, 50, dtype=dtype)
    layer = Linear(weight.clone(), offset)
    exact = F.linear(x.double(), weight.double(), None if offset is None else offset.double())
    torch.testing.assert_close(layer(x).double(), exact, atol=tolerance, rtol=tolerance)
    assert layer(x).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_the_rows_beside_it(dtype: torch.dtype):
    torch.manual_seed(0)
    layer = Linear(torch.randn(96, 64, dtype=dtype))
    x = torch.randn(130, 64, dtype=dtype)
    x[64:] *= 1e6
    alone = torch.cat([layer(row) for row in x.split(1)])
    for count in (4, 16, 64, 130):
        torch.testing.assert_close(layer(x[:count]), alone[:count], atol=0, rtol=1e-5)


def test_a_nan_row_stays_in_its_row():
    layer = Linear(torch.randn(96, 64))
    x = torch.randn(8, 64)
    x[3] = torch.nan
    bad = layer(x).isnan().any(1)
    assert bad.tolist() == [row == 3 for row in range(8)]


def test_any_leading_dimensions():
    layer = Linear(torch.randn(12, 8))
    x = torch.randn(2, 3, 8)
    assert layer(x).shape == (2, 3, 12)
    torch.testing.assert_close(layer(x).view(6, 12), layer(x.view(6, 8)))


def test_a_layer_refuses_rows_of_another_width_or_dtype():
    layer = Linear(torch.randn(12, 8))
    with pytest.raises(RuntimeError):
        layer(torch.randn(3, 9))
    with pytest.raises(RuntimeError):
        layer(torch.randn(3, 8, dtype=torch.bfloat16))


def test_takes_the_kernels_that_are_there(monkeypatch: pytest.MonkeyPatch):
    """Ours, else oneDNN's, else the plain product; elsewhere the plain one."""
    assert packing("cpu", torch.float64) is None
    assert packing("cuda", torch.float32) is None
    weight, x = torch.randn(12, 8), torch.randn(3, 8)
    expected = F.linear(x, weight)
    own = linear.kernels()
    assert kernels_of("cpu", torch.float32) == ("oneDNN" if own is None else f"simsd ({own.vectors[torch.float32]})")
    monkeypatch.setattr(linear, "kernels", lambda: None)
    assert kernels_of("cpu", torch.bfloat16) == "oneDNN"
    assert kernels_of("cpu", torch.float64) == "PyTorch"
    found = packing("cpu", torch.float32)
    assert found is not None and found.own is None
    torch.testing.assert_close(Linear(weight.clone())(x), expected)
    monkeypatch.setattr(linear, "_onednn_works", lambda dtype: False)
    layer = Linear(weight)
    assert layer.packing is None and layer.weight is weight
    assert torch.equal(layer(x), expected)


def test_no_rows():
    assert Linear(torch.randn(12, 8))(torch.randn(0, 8)).shape == (0, 12)


def test_a_bias_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="bias"):
        Linear(torch.randn(6, 4), torch.randn(3))
