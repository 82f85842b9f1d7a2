"""The product of packed weights: right, and the same to the bit whatever stands beside a row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from simsd.native import build, library
from simsd.native.library import kernels
from tests.native.variants import VARIANTS, variant

DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("march", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (33, 7), (64, 40), (70, 513), (256, 1100)])
def test_equals_the_exact_product_to_rounding(march: str, dtype: torch.dtype, bias: bool, outputs: int, inputs: int):
    own = variant(march)
    torch.manual_seed(outputs)
    weight = (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)
    offset = torch.randn(outputs).to(dtype) if bias else None
    packed = own.pack(weight)
    assert packed.numel() == own.packed_size(outputs, inputs, dtype)
    for rows in (1, 2, 3, 5, 11, 12, 13, 25, 66, 121, 250):
        x = torch.randn(rows, inputs).to(dtype)
        exact = F.linear(x.double(), weight.double(), None if offset is None else offset.double())
        found = own.product(x, packed, offset, outputs)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), exact, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("march", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_to_the_bit_whatever_stands_beside_it(march: str, dtype: torch.dtype):
    own = variant(march)
    torch.manual_seed(0)
    packed = own.pack(torch.randn(200, 1300).to(dtype))
    x = torch.randn(300, 1300).to(dtype)
    torch.set_num_threads(1)
    alone = torch.cat([own.product(row, packed, None, 200) for row in x.split(1)])
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for count in (2, 4, 7, 12, 13, 36, 120, 300):
            assert torch.equal(own.product(x[:count], packed, None, 200), alone[:count])


@pytest.mark.parametrize("march", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 15, 256, 1000])
def test_the_norm_equals_the_formula(march: str, dtype: torch.dtype, size: int):
    own = variant(march)
    torch.manual_seed(size)
    x, weight = torch.randn(2, 70, size).to(dtype) * 3, torch.randn(size)
    x[0, 3] = 0
    found = own.norm(x, weight * size**0.5, 1e-5)
    wide = x.double()
    exact = weight.double() * wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(found.double(), exact, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert torch.equal(own.norm(x[:1, 5], weight * size**0.5, 1e-5), found[:1, 5])


@pytest.mark.parametrize("march", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 24, 130, 1000])
def test_the_gate_equals_the_formula(march: str, dtype: torch.dtype, size: int):
    own = variant(march)
    torch.manual_seed(size)
    x = torch.randn(9, 2 * size).to(dtype) * 10
    x[3, 0], x[3, size] = -88.0, 1e38  # denormal times huge
    gate, up = x.double().chunk(2, -1)
    found = own.gate(x)
    torch.testing.assert_close(found.double(), F.silu(gate) * up, atol=1e-6, rtol=TOLERANCE[dtype])
    assert torch.equal(own.gate(x[4:5]), found[4:5])


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_stays_in_its_row(dtype: torch.dtype):
    own = variant("native")
    packed = own.pack(torch.randn(40, 64).to(dtype))
    x = torch.randn(30, 64).to(dtype)
    x[3, 5], x[17, 0] = torch.nan, torch.inf
    bad = ~own.product(x, packed, None, 40).isfinite()
    assert bad.any(1).nonzero().flatten().tolist() == [3, 17]


def test_rows_need_not_be_contiguous():
    own = variant("native")
    packed = own.pack(torch.randn(16, 40).T.contiguous().T)
    x = torch.randn(40, 9).T
    assert torch.equal(own.product(x, packed, None, 16), own.product(x.contiguous(), packed, None, 16))
    assert own.product(torch.randn(2, 3, 40), packed, None, 16).shape == (2, 3, 16)


def test_what_a_thread_keeps_can_be_had_back():
    own = variant("native")
    own.release()
    before = own.kept_bytes
    own.product(torch.randn(100, 400), own.pack(torch.randn(8, 400)), None, 8)
    assert own.kept_bytes - before >= 100 * 400 * 4
    own.release()
    assert own.kept_bytes == before


def test_the_threads_are_those_of_pytorch():
    variant("native")
    with Path("/proc/self/maps").open() as file:
        assert len({line.split()[-1] for line in file if "gomp" in line or "omp5" in line}) == 1


@pytest.mark.parametrize("off", ["0", "false", "OFF"])
def test_there_are_none_where_they_are_not_wanted(monkeypatch: pytest.MonkeyPatch, off: str):
    monkeypatch.setenv(library.SWITCH, off)
    assert kernels.__wrapped__() is None


def test_why_there_are_none_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def fails(march: str = "native") -> None:
        raise build.BuildError("no compiler")

    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.setattr(library.build, "library", fails)
    assert kernels.__wrapped__() is None
    assert "SIMSD_NATIVE=0" in caplog.text
    assert "no compiler" in caplog.text
