"""From logits to tokens: filters, confidence and entropy against naive computations (method section 2)."""

from __future__ import annotations

import math
from decimal import Decimal, getcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simsd.core.sampling import (
    FEW,
    PIECE,
    TARGET,
    distribution,
    doubt_of,
    draw,
    entropy_of,
    gumbel,
    keep_top,
    noise_key,
    scale,
)
from tests.core.cases import make_sampler

getcontext().prec = 60


def naive(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    """Probabilities of one row, by sorting, cutting and dividing."""
    if temperature == 0:
        best = max(range(len(logits)), key=lambda i: (logits[i], -i))
        return [float(i == best) for i in range(len(logits))]
    top = max(logits)
    weight = {i: math.exp((x - top) / temperature) for i, x in enumerate(logits)}
    order = sorted(weight, key=lambda i: (-logits[i], i))
    if top_k:
        order = order[:top_k]
    total = sum(weight[i] for i in order)
    if top_p < 1:
        kept, mass = [], 0.0
        for i in order:
            if mass >= top_p:
                break
            kept.append(i)
            mass += weight[i] / total
        order = kept
    total = sum(weight[i] for i in order)
    return [weight[i] / total if i in order else 0.0 for i in range(len(logits))]


rows = st.lists(st.floats(-6, 6), min_size=2, max_size=7, unique=True)
temperatures = st.sampled_from([0.0, 0.3, 1.0, 2.5])


@given(rows, temperatures, st.integers(0, 9), st.sampled_from([1e-6, 0.2, 0.61, 0.93, 1.0]))
def test_distribution_equals_a_naive_one(row, temperature, top_k, top_p):
    sampler = make_sampler(temperature, top_k, top_p)
    found = distribution(torch.tensor([[row]], dtype=torch.float64), sampler)[0, 0]
    # temperature and top_p are stored in float32
    expected = naive(row, float(sampler.temperature), top_k, float(sampler.top_p))
    assert found.tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("top_p", [0.0, 5e-324, 1e-320, 1e-45, 1e-38, 1e-7])
@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 1.0, 1e6])
def test_the_best_token_is_kept_however_small_top_p_is(dtype, top_p, temperature):
    """Below 1e-45 it is 0 in float32."""
    logits = torch.linspace(-30, 40, 50).to(dtype).flip(0).view(1, 1, 1, -1)
    sampler = make_sampler(temperature, 0, top_p)
    assert distribution(logits, sampler)[0, 0, 0].tolist() == [1.0] + [0.0] * 49
    assert draw(logits, sampler, noise_key(torch.arange(1))[:, None, None]).token.item() == 0


def test_a_mixed_batch_is_each_sequence_by_itself():
    torch.manual_seed(0)
    logits = torch.randn(6, 3, 5, 9, dtype=torch.float64)
    warm, few, most = [0.0, 1.0, 0.7, 1.0, 0.0, 2.0], [0, 3, 0, 0, 2, 1], [1.0, 1.0, 0.5, 1.0, 0.4, 0.9]
    together = distribution(logits, make_sampler(warm, few, most, seed=list(range(6)), batch=6))
    for row in range(6):
        alone = distribution(logits[row : row + 1], make_sampler(warm[row], few[row], most[row]))
        assert torch.equal(together[row : row + 1], alone)


def test_of_equal_logits_the_lower_ids_are_kept():
    tied = torch.tensor([[1.0, 5.0, 5.0, 5.0, 5.0, 0.0]])
    kept = keep_top(tied, make_sampler(1.0, top_k=2)).isfinite()
    assert kept.tolist() == [[False, True, True, False, False, False]]
    uniform = torch.zeros(1, 4)
    assert keep_top(uniform, make_sampler(1.0, top_p=0.5)).isfinite().tolist() == [[True, True, False, False]]
    assert keep_top(uniform, make_sampler(1.0, top_p=0.51)).isfinite().tolist() == [[True, True, True, False]]


def sorted_whole(row: torch.Tensor, top_k: int, top_p: float) -> list[int]:
    """What the filters keep of scaled logits, in rising order, from a sort of them all."""
    order = row.double().argsort(descending=True, stable=True)[: top_k or None]
    mass = row.double()[order].softmax(-1).cumsum(-1) if top_k else row.double().softmax(-1)[order].cumsum(-1)
    before = [0.0, *mass.tolist()][: len(order)]
    kept = [i == 0 or top_p >= 1 or b < top_p for i, b in enumerate(before)]
    return sorted(token for token, keep in zip(order.tolist(), kept, strict=True) if keep)


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0, 30.0])  # from nearly all tokens within top-p to one
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(1, 1.0), (7, 1.0), (FEW, 1.0), (0, 0.3), (0, 0.93), (40, 0.8), (5000, 0.6)]
)
def test_of_a_large_vocabulary_the_same_tokens_are_kept_without_sorting_it(spread, top_k, top_p):
    torch.manual_seed(0)
    logits = torch.randn(1, 4, 2 * FEW + 500) * spread
    logits[0, 1:3] = (logits[0, 1:3] * 2).round() / 2  # many are equal, as in bfloat16
    logits[0, 3, ::2] = -torch.inf
    sampler = make_sampler(1.0, top_k, top_p)
    kept = keep_top(logits, sampler)[0]
    limit = float(sampler.top_p)
    for row, found in zip(logits[0], kept, strict=True):
        ids = found.isfinite().nonzero().flatten()
        assert ids.tolist() == [i for i in sorted_whole(row, top_k, limit) if row[i].isfinite()]
        assert torch.equal(found[ids], row[ids])
    key = noise_key(torch.arange(4))[None]
    expected = (kept + gumbel(key, logits.shape[-1])).argmax(-1)
    assert torch.equal(draw(logits, sampler, key).token, expected)


def test_many_rows_are_drawn_as_each_by_itself():
    torch.manual_seed(1)
    warm, few, most = [0.0, 1.0, 0.7, 1.0], [0, 0, 5, 3], [1.0, 0.9, 1.0, 0.5]
    logits = 5 * torch.randn(4, 5, 9, PIECE // 40, dtype=torch.float64)
    key = noise_key(torch.arange(4 * 5 * 9)).view(4, 5, 9)
    found = draw(logits, make_sampler(warm, few, most, batch=4), key, entropy=True)
    for n in range(4):
        for i in range(5):
            rows, own = logits[n : n + 1, i : i + 1], make_sampler(warm[n], few[n], most[n])
            alone = draw(rows, own, key[n : n + 1, i : i + 1], entropy=True)
            assert torch.equal(found.token[n, i], alone.token[0, 0])
            assert torch.allclose(found.doubt[n, i], alone.doubt[0, 0], rtol=1e-12)
            assert found.entropy is not None
            assert alone.entropy is not None
            assert torch.allclose(found.entropy[n, i], alone.entropy[0, 0], rtol=1e-12)


@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.5}, {"top_k": 3, "top_p": 0.5}])
def test_a_row_of_no_numbers_is_told_by_its_doubt_and_harms_no_other(options):
    torch.manual_seed(2)
    logits = torch.randn(1, 3, 3 * FEW)
    broken = logits.clone()
    broken[0, 1] = torch.nan
    key = noise_key(torch.arange(3))[None]
    found, expected = (draw(x, make_sampler(1.0, **options), key) for x in (broken, logits))
    assert found.doubt.isnan().tolist() == [[False, True, False]]
    assert found.token[0, ::2].tolist() == expected.token[0, ::2].tolist()


def test_top_p_comes_after_top_k():
    # of the two kept by top-k the first alone has 0.73 of the mass, though it has but 0.4 of the whole
    logits = torch.tensor([[3.0, 2.0, 2.0, 2.0]])
    assert distribution(logits, make_sampler(1.0, top_k=2, top_p=0.7)).tolist() == [[1.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-6}, {"top_k": 1, "top_p": 1e-6}])
def test_the_narrowest_filters_leave_the_most_probable_token(options):
    torch.manual_seed(0)
    logits = torch.randn(1, 50, 8)
    key = noise_key(torch.tensor([[3]]), torch.arange(50))
    assert torch.equal(draw(logits, make_sampler(5.0, **options), key).token, logits.argmax(-1))


def test_filters_do_not_change_the_confidence():
    logits = torch.tensor([[[2.0, 1.0, 0.0], [0.2, 0.1, 0.0]]])
    key = noise_key(torch.tensor([[3]]), torch.arange(2))
    drawn = draw(logits, make_sampler(1.0, top_k=1), key)
    p = logits.softmax(-1).amax(-1)
    assert torch.allclose(drawn.doubt, ((1 - p) / p).log(), atol=1e-6)
    assert drawn.doubt[0, 0] < drawn.doubt[0, 1]  # top_k = 1 would make both certain


def test_confidence_and_entropy_are_those_of_the_temperature_scaled_distribution():
    logits = torch.tensor([[[2.0, 1.0, 0.0]]], dtype=torch.float64)
    drawn = draw(logits, make_sampler(0.5), noise_key(torch.tensor([[0]]), 1), entropy=True)
    p = (logits / 0.5).softmax(-1)
    chosen = p[0, 0, int(drawn.token)]
    assert float(drawn.doubt) == pytest.approx(float(((1 - chosen) / chosen).log()))
    assert drawn.entropy is not None
    assert float(drawn.entropy) == pytest.approx(float(-(p * p.log()).sum()))


def test_temperature_0_takes_the_first_best_token_and_divides_by_nothing():
    logits = torch.tensor([[[1.0, 7.0, 7.0, -3.0]]])
    for sampler in (make_sampler(0.0), make_sampler([0.0, 1.0], batch=2)):
        batch = len(sampler.seed)
        key = noise_key(sampler.seed[:, None], torch.arange(1))
        drawn = draw(logits.expand(batch, -1, -1), sampler, key, entropy=True)
        assert drawn.token[0, 0] == 1
        assert drawn.entropy is not None
        assert bool(drawn.doubt.isfinite().all() and drawn.entropy.isfinite().all())
    assert scale(logits, make_sampler(0.0)) is logits


def test_a_greedy_draw_needs_no_key():
    assert draw(torch.eye(4)[None], make_sampler(0.0), None).token.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.8}, {"temperature": 0.6, "top_k": 5, "top_p": 0.9}])
def test_tokens_are_drawn_with_their_probabilities(options):
    sampler = make_sampler(**({"temperature": 1.0} | options))
    torch.manual_seed(0)
    logits = torch.randn(1, 1, 7)
    count = 20_000
    key = noise_key(torch.arange(count), TARGET, 5, 2)[None]
    token = draw(logits.expand(1, count, -1), sampler, key).token.flatten()
    law = distribution(logits.double(), sampler)[0, 0]
    counts = torch.bincount(token, minlength=7)
    assert int(counts[law == 0].sum()) == 0
    kept = law > 0
    assert stats.chisquare(counts[kept].numpy(), (law[kept] * count).numpy()).pvalue > 1e-3


def test_a_masked_out_token_is_never_drawn():
    logits = torch.zeros(1, 5000, 4)
    logits[..., 2] = -torch.inf
    for sampler in (make_sampler(1.0), make_sampler(9.0, top_k=3), make_sampler(1.0, top_p=0.99)):
        token = draw(logits, sampler, noise_key(torch.arange(5000))[None]).token
        assert sorted(token.unique().tolist()) == [0, 1, 3]


def exact(row: list[float], token: int) -> tuple[Decimal, Decimal]:
    """(doubt, entropy) of one row with sixty digits; the row as float32 holds it."""
    values = [Decimal(float(torch.tensor(x, dtype=torch.float32))) for x in row]
    weight = [v.exp() for v in values]
    total = sum(weight, Decimal(0))
    rest = sum((w for i, w in enumerate(weight) if i != token), Decimal(0))
    entropy = -sum(((w / total) * (w / total).ln() for w in weight), Decimal(0))
    return (rest / weight[token]).ln(), entropy


SATURATED = [
    [40.0, 0.0, 0.0, 0.0],
    [90.0, 3.0, -50.0, 2.5],
    [17.0, 0.0, 0.1, -0.2],
    [0.0, 0.0, 0.0, 0.0],
    [1.0, 0.9999, -3.0, 0.3],
    [-30.0, -70.0, -31.0, -99.0],
    [60.0, 60.0, 0.0, 0.0],
]


@pytest.mark.parametrize("row", SATURATED)
def test_doubt_and_entropy_are_accurate_where_the_confidence_rounds_to_1(row):
    logits = torch.tensor(row)
    for token in range(4):
        doubt, _ = exact(row, token)
        assert float(doubt_of(logits, torch.tensor(token))) == pytest.approx(float(doubt), rel=1e-6, abs=1e-6)
    assert float(entropy_of(logits)) == pytest.approx(float(exact(row, 0)[1]), rel=2e-5, abs=1e-37)


@given(rows)
def test_doubt_and_entropy_equal_the_exact_ones(row):
    logits = torch.tensor(row)
    token = int(logits.argmax())
    doubt, entropy = exact(row, token)
    assert float(doubt_of(logits, torch.tensor(token))) == pytest.approx(float(doubt), rel=1e-5, abs=1e-5)
    assert float(entropy_of(logits)) == pytest.approx(float(entropy), rel=1e-5)


def test_entropy_of_a_certain_token_is_zero_and_of_forbidden_tokens_finite():
    logits = torch.full((5,), -torch.inf)
    logits[3] = 2.0
    assert float(entropy_of(logits)) == 0
    assert float(doubt_of(logits, torch.tensor(3))) == -math.inf
    logits[1] = 2.0
    assert float(entropy_of(logits)) == pytest.approx(math.log(2))


def test_entropy_orders_what_rounding_would_make_equal():
    logits = torch.zeros(3, 6)
    logits[:, 0] = torch.tensor([40.0, 60.0, 50.0])
    assert entropy_of(logits).argsort().tolist() == [1, 2, 0]
    assert bool((entropy_of(logits) > 0).all())
