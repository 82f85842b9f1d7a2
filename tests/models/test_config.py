"""config.json: every spelling in use is read, and what is not supported is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simsd.errors import ModelError
from simsd.models import registry
from simsd.models.config import ModelConfig
from tests.models.checkpoints import random_checkpoint, random_config


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
