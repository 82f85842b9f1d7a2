"""The int8 layer: near the exact product, equal to the bit row by row, on every way to multiply."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from simsd.models import quantized
from simsd.models.quantized import Int8Linear, onednn_levels
from tests.models.weigh import weigh

KERNELS = ("fastest", "widened")


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "widened":
        monkeypatch.setattr(quantized, "onednn_levels", lambda: 0)
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 33])
def test_is_near_the_exact_product(kernel: str, dtype: torch.dtype, bias: bool, rows: int):
    torch.manual_seed(rows)
    weight = torch.randn(70, 50, dtype=dtype) / 50**0.5
    offset = torch.randn(70, dtype=dtype) if bias else None
    x = torch.randn(rows, 50, dtype=dtype)
    y = Int8Linear(weight, offset)(x)
    exact = F.linear(x.double(), weight.double(), None if offset is None else offset.double())
    assert y.dtype == dtype
    levels = 127 if kernel == "widened" else onednn_levels() or 127
    assert (y.double() - exact).norm() / exact.norm() < 2 / levels


def test_whole_numbers_are_multiplied_without_error(kernel: str):
    torch.manual_seed(0)
    weight = torch.randint(-127, 128, (40, 600)).float()
    weight[:, 0] = 127
    layer = Int8Linear(weight)
    x = torch.randint(-layer.kernel.levels, layer.kernel.levels + 1, (9, 600)).float()
    x[:, 0] = layer.kernel.levels  # the scale is one
    torch.testing.assert_close(layer(x), x @ weight.T, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_to_the_bit_whatever_stands_beside_it(kernel: str, dtype: torch.dtype):
    torch.manual_seed(0)
    layer = Int8Linear(torch.randn(96, 264, dtype=dtype))
    x = torch.randn(130, 264, dtype=dtype)
    x[64:] *= 1e6
    alone = torch.cat([layer(row) for row in x.split(1)])
    for count in (4, 16, 64, 130):
        assert torch.equal(layer(x[:count]), alone[:count])


def test_a_row_that_is_not_numbers_stays_in_its_row_and_zeros_stay_zeros(kernel: str):
    layer = Int8Linear(torch.randn(96, 64))
    x = torch.randn(8, 64)
    x[3], x[5] = torch.nan, 0
    y = layer(x)
    assert y.isnan().any(1).tolist() == [row == 3 for row in range(8)]
    assert not y[5].any()


def test_a_weight_row_of_zeros_gives_zeros(kernel: str):
    weight = torch.randn(16, 32)
    weight[7] = 0
    assert not Int8Linear(weight)(torch.randn(3, 32))[:, 7].any()


def test_any_leading_dimensions(kernel: str):
    layer = Int8Linear(torch.randn(16, 8))
    x = torch.randn(2, 3, 8)
    assert layer(x).shape == (2, 3, 16)
    assert torch.equal(layer(x).view(6, 16), layer(x.view(6, 8)))


def test_input_is_left_alone(kernel: str):
    x = torch.randn(4, 32)
    before = x.clone()
    Int8Linear(torch.randn(16, 32))(x)
    assert torch.equal(x, before)


def test_the_weight_is_a_byte_a_number(kernel: str):
    layer = Int8Linear(torch.randn(256, 512))
    assert weigh(layer) == pytest.approx(256 * 512 + 256 * 8, rel=0.01)


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE"])
def test_a_cpu_whose_sums_overflow_gets_fewer_levels(isa: str):
    """x86 without VNNI adds two products in 16 bits. oneDNN can be told to be such a CPU."""
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        pytest.skip("not an x86 CPU with AVX2")
    code = (
        "import torch; from simsd.models.quantized import Int8Linear, onednn_levels;"
        "x = torch.full((3, 64), 5.0); layer = Int8Linear(torch.ones(16, 64));"
        "print(onednn_levels(), layer(x).unique().tolist())"
    )
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    levels, values = out.stdout.split(maxsplit=1)
    assert levels == "63"
    assert eval(values) == [pytest.approx(320, rel=1e-6)]


def test_fewer_levels_are_only_less_fine(monkeypatch: pytest.MonkeyPatch):
    if not onednn_levels():
        pytest.skip("no product of oneDNN on this CPU")
    monkeypatch.setattr(quantized, "onednn_levels", lambda: 63)
    torch.manual_seed(0)
    weight, x = torch.randn(64, 96), torch.randn(9, 96)
    exact = x @ weight.T
    assert (Int8Linear(weight)(x) - exact).norm() / exact.norm() < 2 / 63


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 4, 17, 100])
def test_cuda_equals_the_cpu(rows: int):
    torch.manual_seed(rows)
    weight, x = torch.randn(64, 128), torch.randn(rows, 128)
    layer = Int8Linear(weight.cuda())
    assert layer.kernel.product is quantized._cuda
    torch.testing.assert_close(layer(x.cuda()).cpu(), Int8Linear(weight)(x), rtol=1e-5, atol=1e-5)
    whole = torch.cat([layer(row) for row in x.cuda().split(1)])
    assert torch.equal(layer(x.cuda()), whole)


@pytest.mark.gpu
def test_cuda_widens_sizes_that_its_product_does_not_take():
    layer = Int8Linear(torch.randn(20, 30, device="cuda"))
    assert layer.kernel.product is quantized._widened
    assert layer(torch.randn(2, 30, device="cuda")).shape == (2, 20)
