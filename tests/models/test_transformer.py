"""Logits equal transformers' Qwen3, and however the cache is used, they are those of one full forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from simsd.models.loader import load
from simsd.models.transformer import Transformer, rotary_table
from tests.models.checkpoints import LLADA2, MOE, random_checkpoint
from tests.models.reference import Reference

TOLERANCE = {"float32": 1e-4, "float64": 1e-10}
BLOCK = 4

ARCHITECTURES: list[dict[str, Any]] = [
    {},
    {"tie_word_embeddings": True},
    {"num_attention_heads": 4, "num_key_value_heads": 4, "rope_theta": 1e6},
    {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 32},
    {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "num_hidden_layers": 3},
    {"attention_bias": True, "rope_theta": 1e6, "rms_norm_eps": 1e-3},
    {"hidden_size": 128, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 128, "num_hidden_layers": 1},
]


@pytest.fixture
def model(tmp_path: Path) -> Transformer:
    return load(random_checkpoint(tmp_path / "model"), "float64", "cpu").model


def inputs(n: int, length: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Random ids, positions 0 .. length-1 and the block-causal bias."""
    torch.manual_seed(length)
    ids = torch.randint(0, 272, (n, length))
    positions = torch.arange(length).expand(n, length)
    block = torch.arange(length) // BLOCK
    hidden = block[:, None] < block[None, :]
    bias = torch.zeros(n, 1, length, length, dtype=dtype).masked_fill(hidden, -torch.inf)
    return ids, positions, bias


def logits(model: Transformer, *arguments: Any) -> Tensor:
    with torch.inference_mode():
        return model.head(model.forward(*arguments))


def full(model: Transformer, ids: Tensor, positions: Tensor, bias: Tensor) -> Tensor:
    return logits(model, ids, positions, bias, model.make_cache(*ids.shape), 0, ids.shape[1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=str)
def test_logits_equal_an_independent_implementation(tmp_path: Path, architecture: dict[str, Any], dtype: str):
    folder = random_checkpoint(tmp_path, **architecture)
    model = load(folder, dtype, "cpu").model
    ids, positions, bias = inputs(2, 24, model.dtype)
    ours = full(model, ids, positions + 100, bias)
    theirs = Reference(folder, model.dtype).logits(ids, positions + 100, bias)
    assert ours.dtype == model.dtype
    assert theirs.std() > 0.1  # the comparison would mean little otherwise
    assert (ours - theirs).abs().max() < TOLERANCE[dtype]


def test_random_masks_and_positions_equal_an_independent_implementation(tmp_path: Path):
    folder = random_checkpoint(tmp_path)
    model = load(folder, "float64", "cpu").model
    ids, _, bias = inputs(3, 17)
    positions = torch.randint(0, 256, ids.shape)  # repeated and out of order, as in the paired layout
    bias = torch.zeros_like(bias).masked_fill(torch.rand(bias.shape) < 0.5, -torch.inf)
    bias.diagonal(dim1=-2, dim2=-1).zero_()
    theirs = Reference(folder, torch.float64).logits(ids, positions, bias)
    assert (full(model, ids, positions, bias) - theirs).abs().max() < 1e-10


def test_bfloat16_is_close_and_gives_float32_logits(tmp_path: Path):
    folder = random_checkpoint(tmp_path, head_dim=64)
    ids, positions, bias = inputs(1, 16)
    exact = full(load(folder, "float64", "cpu").model, ids, positions, bias)
    model = load(folder, "bfloat16", "cpu").model
    rough = full(model, ids, positions, bias.bfloat16())
    assert rough.dtype == torch.float32
    assert (rough - exact).abs().mean() < 0.02 * exact.abs().mean()


@pytest.mark.parametrize("piece", [1, 4, 8])
@pytest.mark.parametrize("scattered", [False, True])
def test_cached_forwards_equal_one_full_forward(model: Transformer, piece: int, scattered: bool):
    ids, positions, bias = inputs(2, 24)
    if piece < BLOCK:  # a block's first rows cannot see the rest of it before it is there
        bias = torch.zeros_like(bias).masked_fill(torch.ones(24, 24).triu(1).bool(), -torch.inf)
    whole = full(model, ids, positions, bias)
    cache = model.make_cache(2, 30)
    for start in range(0, 24, piece):
        part = slice(start, start + piece)
        slots = positions[:, part] if scattered else start
        end = start + piece
        step = logits(model, ids[:, part], positions[:, part], bias[:, :, part, :end], cache, slots, end)
        assert (step - whole[:, part]).abs().max() < 1e-12


def test_scratch_is_overwritten_and_rolling_back_is_doing_nothing(model: Transformer):
    ids, positions, bias = inputs(1, 16)
    whole = full(model, ids, positions, bias)
    cache = model.make_cache(1, 40)
    logits(model, ids[:, :8], positions[:, :8], bias[..., :8, :8], cache, 0, 8)
    wrong = torch.randint(0, 272, (1, 20))
    for _ in range(2):  # drafts that were rejected, longer than what follows
        logits(model, wrong, torch.arange(8, 28)[None], None, cache, 8, 28)
    last = logits(model, ids[:, 8:], positions[:, 8:], bias[..., 8:, :], cache, 8, 16)
    assert (last - whole[:, 8:]).abs().max() < 1e-12


def test_sequences_of_different_lengths_side_by_side(model: Transformer):
    lengths = [8, 4, 12]
    cache = model.make_cache(5, 40)
    whole = []
    for n, stored in enumerate(lengths):
        ids, positions, bias = inputs(1, stored + 4)
        whole.append(full(model, ids, positions, bias)[:, stored:])
        one = cache.slice(n, 1)
        logits(model, ids[:, :stored], positions[:, :stored], bias[..., :stored, :stored], one, 0, stored)
    tails = torch.cat([inputs(1, stored + 4)[0][:, stored:] for stored in lengths])
    slots = torch.tensor(lengths)[:, None] + torch.arange(4)
    seen = torch.arange(16) < torch.tensor(lengths)[:, None] + 4
    bias = torch.zeros(3, 1, 4, 16, dtype=torch.float64).masked_fill(~seen[:, None, None], -torch.inf)
    batched = logits(model, tails, slots, bias, cache.slice(0, 3), slots, 16)
    assert (batched - torch.cat(whole)).abs().max() < 1e-12


def test_copies_of_a_block_that_see_only_the_prefix_and_themselves_agree(model: Transformer):
    """The unrolled layout's premise (method section 4b)."""
    ids, positions, bias = inputs(1, 12)
    whole = full(model, ids, positions, bias)[:, 8:]
    cache = model.make_cache(1, 40)
    logits(model, ids[:, :8], positions[:, :8], bias[..., :8, :8], cache, 0, 8)
    own = torch.block_diag(*[torch.ones(4, 4)] * 3).bool()
    seen = torch.cat([torch.ones(12, 8).bool(), own], 1)
    tail = torch.zeros(1, 1, 12, 20, dtype=torch.float64).masked_fill(~seen, -torch.inf)
    copies = logits(model, ids[:, 8:].repeat(1, 3), positions[:, 8:].repeat(1, 3), tail, cache, 8, 20)
    for copy in copies.split(4, dim=1):
        assert (copy - whole).abs().max() < 1e-12


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", [{}, MOE, LLADA2], ids=["dense", "sdar_moe", "llada2_moe"])
def test_rows_beside_a_block_do_not_change_its_logits(tmp_path: Path, family: dict[str, Any], dtype: str):
    """To the bit in bfloat16, where a change would be a whole rounding; to the last digits in float32."""
    model = load(random_checkpoint(tmp_path, **family, head_dim=64, hidden_size=128), dtype, "cpu").model
    ids, positions, bias = inputs(1, 12, model.dtype)
    cache = model.make_cache(1, 120)
    logits(model, ids[:, :8], positions[:, :8], bias[..., :8, :8], cache, 0, 8)
    alone = logits(model, ids[:, 8:], positions[:, 8:], None, cache, 8, 12)
    for others in (4, 28, 96):
        noise = torch.randint(0, 272, (1, others))
        tail = torch.zeros(1, 1, 4 + others, 12 + others, dtype=model.dtype)
        tail[..., :4, 12:] = -torch.inf
        places = torch.cat([positions[:, 8:], torch.randint(12, 200, (1, others))], 1)
        beside = logits(model, torch.cat([ids[:, 8:], noise], 1), places, tail, cache, 8, 12 + others)[:, :4]
        torch.testing.assert_close(beside, alone, rtol=0, atol=0 if dtype == "bfloat16" else 2e-5)


def test_head_runs_on_chosen_rows_of_any_shape(model: Transformer):
    hidden = torch.randn(2, 3, 48, dtype=torch.float64)
    assert torch.allclose(model.head(hidden)[1, 2], model.head(hidden[1, 2]))
    assert model.head(hidden[:, :0]).shape == (2, 0, 272)


def test_rotary_table_is_a_rotation_by_position(model: Transformer):
    table = rotary_table(model.config, torch.float64, torch.device("cpu"))
    assert table.shape == (256, 2, 16)
    cos, sin = table.unbind(1)
    torch.testing.assert_close(cos**2 + sin**2, torch.ones_like(cos))
    assert torch.equal(sin[:, :8], -sin[:, 8:])
    assert cos[3, 0].item() == pytest.approx(torch.tensor(3.0, dtype=torch.float64).cos().item())
