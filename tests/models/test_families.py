"""Every model type: logits equal the slow reference's, however the cache is used, and damage is one clear sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from simsd.errors import ModelError
from simsd.models.loader import load
from simsd.models.transformer import Transformer
from tests.models.checkpoints import LLADA2, MOE, random_checkpoint, random_config, save_weights
from tests.models.slow import Slow

TOLERANCE = {"float32": 3e-5, "float64": 1e-10}
T, BLOCK = 12, 4

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "dense": {},
    "sdar_moe": MOE,
    "sdar_moe, every second layer": MOE | {"decoder_sparse_step": 2, "num_hidden_layers": 3},
    "sdar_moe, a dense layer": MOE | {"mlp_only_layers": [1]},
    "sdar_moe, weights as they are": MOE | {"norm_topk_prob": False},
    "sdar_moe, one expert": MOE | {"num_experts_per_tok": 1},
    "llada2_moe": LLADA2 | {"num_hidden_layers": 3},
    "llada2_moe, all dense first": LLADA2 | {"first_k_dense_replace": 0, "num_shared_experts": 2},
    "llada2_moe, one group": LLADA2 | {"n_group": 1, "topk_group": 1, "num_shared_experts": 0},
    "llada2_moe, whole heads turn": LLADA2 | {"partial_rotary_factor": 1.0, "num_experts_per_tok": 1},
    "llada2_moe, a quarter turns": LLADA2 | {"partial_rotary_factor": 0.25, "norm_topk_prob": False},
}


def inputs(masks: str) -> tuple[Tensor, Tensor, Tensor]:
    """ids and positions `[T]`, and what each row sees `[T, T]`."""
    torch.manual_seed(T)
    ids, at = torch.randint(0, 272, (T,)), torch.arange(T)
    if masks == "block-causal":
        return ids, at + 50, at[:, None] // BLOCK >= at[None] // BLOCK
    return ids, torch.randint(0, 256, (T,)), (torch.rand(T, T) < 0.5) | torch.eye(T, dtype=torch.bool)


def logits(model: Transformer, ids: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
    bias = torch.zeros(visible.shape, dtype=model.dtype).masked_fill(~visible, -torch.inf)[None, None]
    with torch.inference_mode():
        return model.head(model.forward(ids[None], positions[None], bias, model.make_cache(1, T), 0, T))[0]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_logits_equal_the_slow_reference(tmp_path: Path, name: str, dtype: str):
    folder = random_checkpoint(tmp_path, **ARCHITECTURES[name])
    model = load(folder, dtype, "cpu").model
    for masks in ("block-causal", "random"):
        ids, positions, visible = inputs(masks)
        expected = Slow(folder).logits(ids.tolist(), positions.tolist(), visible)
        assert expected.std() > 0.1
        assert (logits(model, ids, positions, visible) - expected).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("norm_topk_prob", [True, False])
def test_sdar_moe_equals_transformers_qwen3_moe(tmp_path: Path, norm_topk_prob: bool):
    """Public weights are stored one expert at a time, as transformers reads them too."""
    folder = random_checkpoint(tmp_path, **MOE | {"norm_topk_prob": norm_topk_prob, "mlp_only_layers": [0]})
    raw = random_config(**MOE | {"norm_topk_prob": norm_topk_prob, "mlp_only_layers": [0]})
    config = Qwen3MoeConfig(**{k: v for k, v in raw.items() if k not in ("model_type", "torch_dtype")})
    config._attn_implementation = "sdpa"
    theirs: Any = Qwen3MoeForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32).eval()
    ids, positions, visible = inputs("block-causal")
    bias = torch.zeros(T, T).masked_fill(~visible, -torch.inf)[None, None]
    with torch.inference_mode():
        expected = theirs(input_ids=ids[None], position_ids=positions[None], attention_mask=bias).logits[0]
    found = logits(load(folder, "float32", "cpu").model, ids, positions, visible)
    assert (found - expected).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["sdar_moe", "llada2_moe"])
def test_cached_forwards_equal_one_full_forward(tmp_path: Path, name: str):
    model = load(random_checkpoint(tmp_path, **ARCHITECTURES[name]), "float64", "cpu").model
    ids, positions, visible = inputs("block-causal")
    whole = logits(model, ids, positions, visible)
    cache = model.make_cache(1, T)
    with torch.inference_mode():
        for at in range(0, T, BLOCK):
            part = slice(at, at + BLOCK)
            hidden = model.forward(ids[None, part], positions[None, part], None, cache, at, at + BLOCK)
            assert (model.head(hidden)[0] - whole[part]).abs().max() < 1e-12


@pytest.mark.parametrize("name", ["sdar_moe", "llada2_moe"])
def test_shards_load_like_one_file(tmp_path: Path, name: str):
    one = load(random_checkpoint(tmp_path / "one", **ARCHITECTURES[name]), "float64", "cpu").model
    many = load(random_checkpoint(tmp_path / "many", shards=5, **ARCHITECTURES[name]), "float64", "cpu").model
    assert torch.equal(logits(one, *inputs("random")), logits(many, *inputs("random")))


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("sdar_moe", "model.layers.1.mlp.experts.7.up_proj.weight"),
        ("sdar_moe", "model.layers.0.mlp.gate.weight"),
        ("llada2_moe", "model.layers.1.mlp.gate.expert_bias"),
        ("llada2_moe", "model.layers.1.mlp.shared_experts.down_proj.weight"),
        ("llada2_moe", "model.layers.0.attention.query_key_value.weight"),
    ],
)
def test_a_missing_weight_is_named(tmp_path: Path, name: str, gone: str):
    folder = random_checkpoint(tmp_path, **ARCHITECTURES[name])
    weights = load_file(folder / "model.safetensors")
    del weights[gone]
    save_weights(folder, weights)
    with pytest.raises(ModelError, match=f"lacks 1 weights .*{gone}"):
        load(folder)


def test_experts_of_another_size_or_number_are_named(tmp_path: Path):
    folder = random_checkpoint(tmp_path, **MOE)
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.experts.2.down_proj.weight"
    save_weights(folder, weights | {name: torch.ones(48, 25)})
    with pytest.raises(ModelError, match=r"experts\.2\.down_proj\.weight is \[48, 25\], not \[48, 24\]"):
        load(folder)
    more = {f"model.layers.0.mlp.experts.8.{part}_proj.weight": torch.ones(1) for part in ("gate", "up", "down")}
    save_weights(folder, weights | more)
    with pytest.raises(ModelError, match=r"3 weights of another model: model\.layers\.0\.mlp\.experts\.8"):
        load(folder)


def test_llada2_reads_a_bias_where_one_is_stored(tmp_path: Path):
    folder = random_checkpoint(tmp_path, **LLADA2)
    weights = load_file(folder / "model.safetensors")
    bias = {f"model.layers.{i}.attention.dense.bias": torch.randn(48) for i in range(2)}
    save_weights(folder, weights | bias)
    ids, positions, visible = inputs("random")
    expected = Slow(folder).logits(ids.tolist(), positions.tolist(), visible)
    assert (logits(load(folder, "float64", "cpu").model, ids, positions, visible) - expected).abs().max() < 1e-10


def test_what_a_silent_checkpoint_gets(tmp_path: Path):
    silent: dict[str, Any] = {
        "block_size": None,
        "mask_token_id": None,
        "eos_token_id": None,
        "vocab_size": 157184,
        "hidden_size": 8,
    }
    quiet = {"score_function": None, "partial_rotary_factor": None}
    overrides: dict[str, Any] = LLADA2 | silent | quiet
    folder = random_checkpoint(tmp_path, **overrides, num_hidden_layers=1)
    (folder / "generation_config.json").unlink()
    config = load(folder, device="cpu").config
    assert (config.block_length, config.mask_token_id, config.stop_token_ids) == (32, 156895, (156892,))
    assert (config.rotary_dim, config.moe and config.moe.score_function) == (8, "sigmoid")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (MOE | {"num_experts_per_tok": 9}, "num_experts_per_tok = 9, but only 8"),
        (LLADA2 | {"num_experts_per_tok": 9}, "num_experts_per_tok = 9, but only 8"),
        (LLADA2 | {"n_group": 5}, "2 of 5 groups of 16 experts"),
        (LLADA2 | {"score_function": "noisy"}, "'noisy' is not supported"),
        (LLADA2 | {"use_qk_norm": False}, "use_qk_norm = false"),
        (LLADA2 | {"partial_rotary_factor": 0.35}, "partial_rotary_factor = 0.35"),
        (MOE | {"moe_intermediate_size": 0}, "moe_intermediate_size = 0"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(tmp_path: Path, overrides: dict[str, Any], words: str):
    from simsd.models.config import ModelConfig

    with pytest.raises(ModelError, match=words):
        ModelConfig.from_dict(random_config(**overrides))
