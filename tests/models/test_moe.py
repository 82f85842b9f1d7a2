"""The router's choices, and the grouped products against a plain loop over rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from simsd.models.linear import Linear
from simsd.models.moe import Experts, PackedStack, Router, _filled_up, _grouped, _packed, router_dtype
from simsd.models.quantized import Int8Linear
from tests.native.variants import variant

E, H, INNER = 8, 16, 24


def stacks(dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    gate_up = torch.randn(E, 2 * INNER, H, generator=generator) * H**-0.5
    down = torch.randn(E, H, INNER, generator=generator) * INNER**-0.5
    return gate_up.to(dtype), down.to(dtype)


def packed(stack: Tensor) -> PackedStack:
    return PackedStack.of(iter(stack), len(stack), variant("native"))


def one_by_one(x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    rows = []
    for row, ids, counts in zip(x, chosen.tolist(), weights, strict=True):
        gate, up = zip(*[(gate_up[e] @ row).chunk(2) for e in ids], strict=True)
        rows.append(sum(w * (down[e] @ (F.silu(g) * u)) for e, g, u, w in zip(ids, gate, up, counts, strict=True)))
    return torch.stack(rows)


@pytest.mark.parametrize("product", [_packed, _grouped, _filled_up])
@pytest.mark.parametrize("chosen", ["mixed", "all one expert", "the last alone", "one row"])
def test_grouped_products_equal_a_loop_over_rows(product, chosen: str):
    torch.manual_seed(1)
    ids = torch.rand(9, E).topk(3, -1).indices
    if chosen == "all one expert":
        ids = torch.tensor([[4]]).expand(9, 1)
    elif chosen == "the last alone":
        ids = torch.full((2, 1), E - 1)
    elif chosen == "one row":
        ids = torch.tensor([[6, 0]])
    x, weights = torch.randn(ids.shape[0], H), torch.rand(ids.shape)
    experts = Experts(*(packed(stack) if product is _packed else stack for stack in stacks(torch.float32)))
    experts.product = product
    torch.testing.assert_close(experts(x, ids, weights), one_by_one(x, ids, weights, *stacks(torch.float32)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_gives_rows_in_its_own(dtype: torch.dtype):
    torch.manual_seed(2)
    x, ids, weights = torch.randn(5, H), torch.rand(5, E).topk(2, -1).indices, torch.rand(5, 2)
    experts = Experts(*stacks(dtype))
    found = experts(x.to(dtype), ids, weights.to(router_dtype(dtype)))
    assert found.dtype == dtype
    exact = one_by_one(x.double(), ids, weights.double(), *stacks(torch.float64))
    size = {torch.float64: 1e-6, torch.float32: 1e-5}.get(dtype, 0.05)
    assert (found.double() - exact).abs().max() < size * exact.abs().max()


def test_softmax_router_takes_the_likeliest_and_lets_them_sum_to_one():
    router = Router(Linear(torch.eye(4)), top_k=2)
    chosen, weights = router(torch.tensor([[0.0, 2.0, 1.0, -3.0]]))
    assert chosen.tolist() == [[1, 2]]
    torch.testing.assert_close(weights, torch.tensor([[2.0, 1.0]]).softmax(-1))
    whole = torch.tensor([0.0, 2.0, 1.0, -3.0]).softmax(-1)
    _, plain = Router(Linear(torch.eye(4)), top_k=2, renormalise=False)(torch.tensor([[0.0, 2.0, 1.0, -3.0]]))
    torch.testing.assert_close(plain[0], whole[[1, 2]])


def test_bias_decides_who_is_chosen_and_not_how_much_it_counts():
    x = torch.tensor([[1.0, 0.5, 0.0, -1.0]])
    bias = torch.tensor([0.0, 0.0, 0.0, 5.0])
    chosen, weights = Router(Linear(torch.eye(4)), 2, "sigmoid", renormalise=False, bias=bias, scale=2.0)(x)
    assert chosen.tolist() == [[3, 0]]
    torch.testing.assert_close(weights, 2 * torch.tensor([[-1.0, 1.0]]).sigmoid())


def test_groups_that_are_not_kept_are_closed_even_to_the_best_expert():
    x = torch.tensor([[9.0, -9.0, 1.0, 1.0, 0.5, 0.5]])  # the best expert sits beside the worst
    closed, _ = Router(Linear(torch.eye(6)), 2, "sigmoid", groups=3, kept_groups=1)(x)
    assert sorted(closed[0].tolist()) == [2, 3]
    free, _ = Router(Linear(torch.eye(6)), 2, "sigmoid", groups=3, kept_groups=3)(x)
    assert 0 in free[0].tolist()


def test_scores_of_a_bfloat16_model_are_float32():
    assert router_dtype(torch.bfloat16) == torch.float32
    x = torch.tensor([[1.0, 1.001, 0.0, 0.0]])  # the same number in bfloat16
    chosen, _ = Router(Linear(torch.eye(4)), 1)(x)
    assert chosen.tolist() == [[1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ids", [[[0, 5], [6, 7], [1, 2]], [[0, 1], [2, 0]], [[7, 6]]], ids=["mixed", "first", "last"])
def test_parts_of_the_experts_add_up(dtype: torch.dtype, ids: list[list[int]]):
    torch.manual_seed(3)
    gate_up, down = stacks(dtype)
    chosen = torch.tensor(ids)
    x, weights = torch.randn(len(ids), H, dtype=dtype), torch.rand(chosen.shape, dtype=dtype)
    whole = Experts(gate_up, down)(x, chosen, weights)
    for of in [lambda stack: stack] + [packed] * (dtype in (torch.float32, torch.bfloat16)):
        shares = [
            Experts(of(gate_up[a:b]), of(down[a:b]), a, partial=True)(x, chosen, weights)
            for a, b in ((0, 3), (3, 5), (5, 8))
        ]
        torch.testing.assert_close(sum(shares), whole)
        assert not shares[1].isnan().any()


@pytest.mark.parametrize("ids", [[[0, 5], [6, 7], [1, 2]], [[0, 1], [2, 0]], [[7, 6]]], ids=["mixed", "first", "last"])
def test_parts_of_int8_experts_add_up(ids: list[list[int]]):
    torch.manual_seed(3)
    gate_up, down = ([Int8Linear(weight) for weight in stack] for stack in stacks(torch.float64))
    chosen = torch.tensor(ids)
    x, weights = torch.randn(len(ids), H, dtype=torch.float64), torch.rand(chosen.shape, dtype=torch.float64)
    whole = Experts(gate_up, down)(x, chosen, weights)
    parts = ((0, 3), (3, 5), (5, 8))
    shares = [Experts(gate_up[a:b], down[a:b], a, partial=True)(x, chosen, weights) for a, b in parts]
    torch.testing.assert_close(sum(shares), whole)
    assert whole.abs().max() > 0


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("experts", [4, 12, 24])
def test_a_row_is_routed_the_same_to_the_bit_whatever_stands_beside_it(score: str, experts: int):
    torch.manual_seed(experts)
    router = Router(Linear(torch.randn(experts, H)), 2, score)
    x = torch.randn(65, H)
    chosen, weights = router(x)
    for rows in x.split(1), x.split(7):
        parts = [router(part) for part in rows]
        assert torch.equal(torch.cat([ids for ids, _ in parts]), chosen)
        assert torch.equal(torch.cat([counts for _, counts in parts]), weights)
