"""config.json: every spelling in use is read, and what is not supported is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simsd import LLM
from simsd.errors import ModelError
from simsd.models import registry
from simsd.models.config import ModelConfig
from simsd.models.loader import read_config
from tests.models.checkpoints import LLADA2, MOE, random_checkpoint, random_config, write_json


def parse(**overrides: Any) -> ModelConfig:
    return ModelConfig.from_dict(random_config(**overrides))


def test_sizes_are_read_as_written():
    config = parse(hidden_size=64, head_dim=24, num_attention_heads=6, num_key_value_heads=3)
    assert (config.hidden_size, config.head_dim, config.groups) == (64, 24, 2)


def test_head_dim_and_kv_heads_default_to_plain_attention():
    config = parse(head_dim=None, num_key_value_heads=None)
    assert config.head_dim == 48 // 4
    assert config.num_key_value_heads == config.num_attention_heads


@pytest.mark.parametrize(
    "written",
    [
        {"rope_theta": 1e6},
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        {"rope_theta": None, "rope_scaling": {"type": "default", "rope_theta": 1e6}},
    ],
)
def test_rope_theta_is_found_wherever_it_is_written(written: dict[str, Any]):
    assert parse(**written).rope_theta == 1e6


def test_stop_ids_of_both_files_are_kept_in_order_and_once():
    raw = random_config(eos_token_id=258)
    assert ModelConfig.from_dict(raw, {"eos_token_id": [7, 258, 5]}).stop_token_ids == (7, 258, 5)
    assert ModelConfig.from_dict(raw, {"eos_token_id": 7}).stop_token_ids == (7, 258)
    assert ModelConfig.from_dict(random_config(eos_token_id=None)).stop_token_ids == ()


def test_stop_id_zero_counts():
    assert ModelConfig.from_dict(random_config(eos_token_id=0)).stop_token_ids == (0,)


@pytest.mark.parametrize(
    ("name", "written", "trained", "block_length"),
    [
        ("SDAR-8B-Chat-b8", None, (8,), 8),
        ("SDAR-8B-Chat-b16-GPTQ", None, (16,), 16),
        ("SDAR-8B-Chat", None, (), 4),
        ("SDAR-8B-Chat", 32, (32,), 32),
        ("SDAR-8B-Chat-b8", 4, (8,), 4),
        ("SDAR-b8base", None, (), 4),
    ],
)
def test_block_length_comes_from_config_then_name_then_family(
    name: str, written: int | None, trained: tuple[int, ...], block_length: int
):
    config = ModelConfig.from_dict(random_config(block_size=written), name=name)
    assert config.trained_block_lengths == trained
    assert registry.with_defaults(config).block_length == block_length


def test_silent_checkpoint_gets_sdar_mask():
    config = parse(vocab_size=151936, mask_token_id=None, block_size=None)
    assert config.mask_token_id is None
    assert registry.with_defaults(config).mask_token_id == 151669


def test_user_overrides_win():
    config = registry.with_defaults(parse().override(mask_token_id=5, block_length=16))
    assert (config.mask_token_id, config.block_length) == (5, 16)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"use_sliding_window": True, "sliding_window": 4096}, "4096"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "multiple"),
        ({"head_dim": 15}, "15"),
        ({"vocab_size": "many"}, "many"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ({"mask_token_id": 272}, "272"),
        ({"block_size": 0}, "block_size = 0"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(overrides: dict[str, Any], words: str):
    with pytest.raises(ModelError, match=words):
        parse(**overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        {"rope_scaling": {"rope_type": "default"}},
        {"use_sliding_window": False, "sliding_window": 4096},
        {"use_sliding_window": True, "sliding_window": None},
        {"layer_types": ["full_attention", "full_attention"]},
    ],
)
def test_features_that_are_present_but_off_are_accepted(overrides: dict[str, Any]):
    assert parse(**overrides).num_hidden_layers == 2


SCALED: list[dict[str, Any]] = [
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "rope_parameters": {"rope_type": "default"}},
    {"rope_scaling": {"rope_type": "default"}, "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
    {"rope_scaling": {"rope_type": "default", "type": "yarn", "factor": 4.0}},
    {"rope_scaling": {"type": "default", "rope_type": "dynamic"}},
    {"rope_parameters": {"full_attention": {"rope_type": "yarn"}, "sliding_attention": {"rope_type": "default"}}},
    {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
    {"rope_scaling": {"factor": 4.0}},
    {"rope_parameters": {"rope_theta": 10000.0, "mrope_section": [16, 24, 24]}},
    {"rope_scaling": "yarn"},
    {"rope_scaling": ["linear", 2.0]},
    {"rope_scaling": 2.0},
    {"rope_scaling": {"rope_type": ["yarn"]}},
    {"rope_theta": 10000.0, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
    {"rope_theta": None, "rope_scaling": {"rope_theta": 1e5}, "rope_parameters": {"rope_theta": 1e6}},
    {"partial_rotary_factor": 1.0, "rope_parameters": {"partial_rotary_factor": 0.5}},
]


@pytest.mark.parametrize("written", SCALED, ids=str)
def test_positions_that_would_be_scaled_or_are_told_in_two_ways_are_refused(written: dict[str, Any]):
    with pytest.raises(ModelError, match=r"rope_|partial_rotary_factor"):
        parse(**written)


@pytest.mark.parametrize(
    "written",
    [
        {"rope_theta": None, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 1.0}},
        {"rope_scaling": None, "rope_parameters": {}},
        {"rope_scaling": {"type": "default", "rope_type": "default", "factor": None}},
    ],
    ids=str,
)
def test_unscaled_positions_load_in_every_spelling(written: dict[str, Any]):
    config = parse(**written)
    assert (config.rope_theta, config.partial_rotary_factor) == (10000.0, 1.0)


def test_what_newer_transformers_write_for_qwen_is_read():
    from transformers import Qwen3Config

    written = Qwen3Config(**{k: v for k, v in random_config().items() if k in ("hidden_size", "head_dim")}).to_dict()
    config = ModelConfig.from_dict(written | {"model_type": "sdar"})
    assert (config.rope_theta, config.head_dim) == (10000.0, 16)


def test_half_of_each_head_is_rotated_where_llada2_is_silent():
    silent = LLADA2 | {"partial_rotary_factor": None}
    assert parse(**silent).partial_rotary_factor == 0.5
    assert parse(**silent, rope_parameters={"partial_rotary_factor": 1.0}).partial_rotary_factor == 1.0


@pytest.mark.parametrize("kind", ["sliding_attention", "chunked_attention", "linear_attention", "mamba", 3])
def test_layers_of_other_attention_are_refused_by_name(kind: Any):
    with pytest.raises(ModelError, match=f"layers of type {kind!r}.* only models of full attention"):
        parse(layer_types=["full_attention", kind])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000"),
        (MOE | {"num_experts": 10**9}, "num_experts = 1000000000"),
        (MOE | {"num_hidden_layers": 1000, "num_experts": 4000}, "num_experts = 4000 in each of 1000 layers"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings = 1000000000000"),
        (LLADA2 | {"decoder_sparse_step": 0}, "decoder_sparse_step = 0"),
        (LLADA2 | {"num_shared_experts": -1}, "num_shared_experts = -1"),
        (LLADA2 | {"routed_scaling_factor": -1}, "routed_scaling_factor = -1"),
    ],
)
def test_counts_that_nothing_could_hold_are_refused_at_once(overrides: dict[str, Any], words: str):
    with pytest.raises(ModelError, match=words):
        parse(**overrides)


def test_layers_beyond_the_last_cost_nothing_to_leave_out():
    moe = parse(**LLADA2 | {"first_k_dense_replace": 10**12}).moe
    assert moe is not None and moe.sparse_layers == ()


@pytest.mark.parametrize("key", ["num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"])
def test_routing_that_is_not_told_is_not_guessed(key: str):
    with pytest.raises(ModelError, match=f"lacks {key}"):
        parse(**MOE | {key: None})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_theta", True),
        ("rope_theta", "1e6"),
        ("rms_norm_eps", "1e-6"),
        ("rms_norm_eps", False),
        ("use_qk_norm", "false"),
        ("norm_head", 0),
        ("use_sliding_window", "false"),
        ("tie_word_embeddings", "true"),
        ("attention_bias", 1),
        ("partial_rotary_factor", "0.5"),
        ("hidden_act", ["silu"]),
        ("layer_types", "full_attention"),
        ("num_hidden_layers", True),
        ("num_hidden_layers", "2"),
        ("eos_token_id", [1.5]),
        ("eos_token_id", "258"),
        ("model_type", ["sdar"]),
    ],
)
def test_values_of_another_kind_are_refused_by_name(key: str, value: Any):
    with pytest.raises(ModelError, match=rf"^config\.json holds a value of the wrong kind: {key} is "):
        parse(**{key: value})


def test_stop_ids_are_blamed_on_the_file_that_has_them():
    with pytest.raises(ModelError, match=r"^config\.json says eos_token_id = -1"):
        parse(eos_token_id=-1)
    with pytest.raises(ModelError, match=r"^generation_config\.json says eos_token_id = \[5, -1\]"):
        ModelConfig.from_dict(random_config(), {"eos_token_id": [5, -1]})
    with pytest.raises(ModelError, match=r"^generation_config\.json holds a value of the wrong kind: eos_token_id is"):
        ModelConfig.from_dict(random_config(), {"eos_token_id": "x"})


@pytest.mark.parametrize("written", [{"mask_token_id": 10**6}, {"mask_token_id": None}, {"block_size": 0}], ids=str)
def test_what_the_user_says_holds_whatever_the_file_says(tmp_path: Path, written: dict[str, Any]):
    """The family's own MASK is outside this vocabulary, too."""
    folder = random_checkpoint(tmp_path)
    write_json(folder / "config.json", random_config(**written))
    with pytest.raises(ModelError, match=r"pass the right one as mask_token_id|block_size = 0"):
        read_config(folder, folder)
    config = read_config(folder, folder, mask_token_id=259, block_length=4)
    assert (config.mask_token_id, config.block_length) == (259, 4)
    llm = LLM(folder, mask_token_id=259, block_length=4, device="cpu")
    assert llm.config.mask_token_id == 259


def test_folder_errors_name_the_file(tmp_path: Path):
    with pytest.raises(ModelError, match=r"config\.json does not exist"):
        ModelConfig.from_folder(tmp_path)
    folder = random_checkpoint(tmp_path / "c")
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"generation_config\.json cannot be read"):
        ModelConfig.from_folder(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="JSON object"):
        ModelConfig.from_folder(folder)


def test_unknown_model_type_lists_the_supported_ones():
    with pytest.raises(ModelError, match=r"'llama'.*sdar"):
        registry.with_defaults(parse(model_type="llama"))
