"""The halves of a layer as one call: they say what the parts say one by one, and a row comes out the same to the bit
wherever it is looked at, which is what exact verification is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from simsd.models import linear
from simsd.models.loader import load
from simsd.models.transformer import Transformer
from tests.models.checkpoints import LLADA2, MOE, random_checkpoint
from tests.native.variants import VARIANTS, variant

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "dense": {},
    "heads of 40, groups of 3": {"head_dim": 40, "num_attention_heads": 6, "num_key_value_heads": 2},
    "wide heads, biases": {"head_dim": 144, "attention_bias": True, "hidden_size": 50, "intermediate_size": 30},
    "experts": MOE,
    "experts, half of a head turns": LLADA2 | {"attention_bias": True},
}
DTYPES = ("float32", "bfloat16")
PREFIX, BLOCK = 21, 4


def loaded(folder: Path, dtype: str, march: str | None, monkeypatch: pytest.MonkeyPatch) -> Transformer:
    """With the kernels of this variant, or with PyTorch's operators alone."""
    own = None if march is None else variant(march)
    monkeypatch.setattr(linear, "kernels", lambda: own)
    model = load(folder, dtype, "cpu").model
    assert all((layer.attention.native is None) == (own is None) for layer in model.layers)
    return model


def run(
    model: Transformer, ids: Tensor, positions: Tensor, seen: Tensor, cache: Any, slots: Any, length: int
) -> Tensor:
    """Hidden states `[N, R, H]`; seen: bool `[N, R, length]`."""
    bias = torch.zeros(seen.shape, dtype=model.dtype).masked_fill(~seen, -torch.inf)[:, None]
    with torch.inference_mode():
        return model.forward(ids, positions, bias, cache, slots, length)


@pytest.mark.parametrize("march", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_as_near_to_the_truth_as_the_parts_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, dtype: str, march: str
):
    """Three sequences, with rows side by side and with each at a slot of its own. The truth is the model in float64."""
    folder = random_checkpoint(tmp_path, **ARCHITECTURES[name])
    models = [loaded(folder, dtype, march, monkeypatch), loaded(folder, dtype, None, monkeypatch)]
    models.append(load(folder, "float64", "cpu").model)
    torch.manual_seed(0)
    n, rows, length = 3, 70, 90
    ids, positions = torch.randint(0, 256, (n, rows)), torch.randint(0, 200, (n, rows))
    seen = torch.rand(n, rows, length) < 0.4
    seen[..., 5] = True
    for slots in (5, torch.stack([torch.randperm(length - 5)[:rows] + 5 for _ in range(n)])):
        caches = [model.make_cache(n + 1, length + 3).slice(1, n) for model in models]
        mine, theirs, truth = (
            run(model, ids, positions, seen, cache, slots, length).double()
            for model, cache in zip(models, caches, strict=True)
        )
        # in bfloat16, which experts a row goes to is a matter of rounding
        factor = 1.5 if dtype == "bfloat16" and "experts" in name else 1.1
        assert (mine - truth).abs().mean() < factor * (theirs - truth).abs().mean() + 1e-6
        stored, _, right = (cache.buffer.double() for cache in caches)
        assert (stored - right).abs().mean() < (1e-6 if dtype == "float32" else 2e-2) * right.abs().mean()
        assert torch.equal((stored != 0).any(-1), (right != 0).any(-1))  # nothing was written elsewhere


@pytest.mark.parametrize("march", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["dense", "heads of 40, groups of 3", "wide heads, biases"])
def test_a_copy_of_a_block_is_the_block_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, dtype: str, march: str
):
    """A block behind its prefix, and the same block as the middle one of many copies that do not see each other."""
    model = loaded(random_checkpoint(tmp_path, **ARCHITECTURES[name]), dtype, march, monkeypatch)
    torch.manual_seed(1)
    prefix, block = torch.randint(0, 256, (1, PREFIX)), torch.randint(0, 256, (1, BLOCK))
    place = torch.arange(PREFIX, PREFIX + BLOCK)[None]

    def begun() -> Any:
        cache = model.make_cache(1, 200)
        everything = torch.ones(1, PREFIX, PREFIX, dtype=torch.bool)
        run(model, prefix, torch.arange(PREFIX)[None], everything, cache, 0, PREFIX)
        return cache

    alone = run(
        model, block, place, torch.ones(1, BLOCK, PREFIX + BLOCK, dtype=torch.bool), begun(), PREFIX, PREFIX + BLOCK
    )
    for copies in (2, 5, 30):
        ids = torch.randint(0, 256, (1, copies * BLOCK))
        at = copies // 2
        ids[:, at * BLOCK : (at + 1) * BLOCK] = block
        own = torch.arange(copies).repeat_interleave(BLOCK)
        seen = torch.cat((torch.ones(len(own), PREFIX, dtype=torch.bool), own[:, None] == own), 1)
        many = run(model, ids, place.repeat(1, copies), seen[None], begun(), PREFIX, PREFIX + len(own))
        assert torch.equal(many[:, at * BLOCK : (at + 1) * BLOCK], alone)


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str):
    """With enough work for all of them."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 1}
    model = loaded(random_checkpoint(tmp_path, **sizes), dtype, "native", monkeypatch)
    ids, place = torch.randint(0, 256, (2, 200)), torch.arange(200).expand(2, -1)
    seen = torch.rand(2, 200, 200) < 0.5
    seen[..., 0] = True
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            cache = model.make_cache(2, 200)
            found.append((run(model, ids, place, seen, cache, 0, 200), cache.buffer))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(hidden, found[0][0]) and torch.equal(kept, found[0][1]) for hidden, kept in found)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_stays_in_its_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str):
    model = loaded(random_checkpoint(tmp_path), dtype, "native", monkeypatch)
    model.embedding.weight = model.embedding.weight.clone()
    model.embedding.weight[77] = torch.nan
    ids = torch.tensor([[5, 7, 9, 11], [5, 77, 9, 11], [1, 2, 3, 4]])
    seen = torch.ones(3, 4, 4, dtype=torch.bool)
    hidden = run(model, ids, torch.arange(4).expand(3, -1), seen, model.make_cache(3, 8), 0, 4)
    assert hidden.isnan().all(-1).all(-1).tolist() == [False, True, False]
    assert hidden[::2].isfinite().all()


@pytest.mark.parametrize(
    ("slots", "shape", "length"),
    [
        (5, (1, 1, 4, 9), 30),
        (6, (1, 1, 4, 8), 8),
        (-1, (1, 1, 4, 8), 8),
        (0, (1, 1, 3, 4), 4),
        (0, (2, 1, 4, 4), 4),
        (torch.tensor([[0, 1, 2, 9]]), (1, 1, 4, 4), 4),
        (torch.tensor([[0, 1, 2]]), (1, 1, 4, 4), 4),
    ],
)
def test_nothing_is_read_or_written_beside_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: int | Tensor, shape: tuple[int, ...], length: int
):
    model = loaded(random_checkpoint(tmp_path), "float32", "native", monkeypatch)
    ids = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(ValueError, match=r"slot|bias"):
        model.forward(ids, ids, torch.zeros(shape), model.make_cache(1, 9), slots, length)
