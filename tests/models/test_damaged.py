"""Damaged or lying checkpoint files: each ends in one `ModelError`, whatever the file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from simsd.errors import ModelError
from simsd.models.loader import load
from tests.models.checkpoints import random_checkpoint

CONFIG: list[tuple[str, Any]] = [
    ("num_attention_heads", 0),
    ("num_attention_heads", -1),
    ("num_hidden_layers", 2.7),
    ("num_hidden_layers", True),
    ("hidden_size", "wide"),
    ("hidden_size", [32]),
    ("vocab_size", None),
    ("max_position_embeddings", 10**12),
    ("rms_norm_eps", -1),
    ("rope_theta", 0),
    ("tie_word_embeddings", "false"),
    ("layer_types", 5),
    ("model_type", ["sdar"]),
    ("model_type", {"a": 1}),
    ("eos_token_id", "end"),
]


def change(path: Path, key: str, value: Any) -> None:
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {key: value}))


@pytest.mark.parametrize(("key", "value"), CONFIG, ids=lambda part: str(part)[:20])
def test_a_config_that_lies(tmp_path: Path, key: str, value: Any):
    folder = random_checkpoint(tmp_path)
    change(folder / "config.json", key, value)
    with pytest.raises(ModelError):
        load(folder, device="cpu")


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("key", ["rope_theta", "rms_norm_eps", "hidden_size"])
def test_what_is_no_json_number_is_refused(tmp_path: Path, key: str, constant: str):
    folder = random_checkpoint(tmp_path)
    text = json.dumps(json.loads((folder / "config.json").read_text()) | {key: "HERE"})
    (folder / "config.json").write_text(text.replace('"HERE"', constant))
    with pytest.raises(ModelError, match="cannot be read as JSON"):
        load(folder, device="cpu")


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_deep_nesting_is_refused(tmp_path: Path, name: str):
    folder = random_checkpoint(tmp_path)
    (folder / name).write_text("[" * 100_000)
    with pytest.raises(ModelError, match="cannot be read as JSON"):
        load(folder, device="cpu")


TOKENIZER: list[tuple[str, Any]] = [
    ("added_tokens_decoder", {"x": {"content": "a"}}),
    ("added_tokens_decoder", {"5000": {}}),
    ("added_tokens_decoder", [1]),
    ("eos_token", {"x": 1}),
    ("chat_template", [5]),
    ("chat_template", [{"name": "default"}]),
    ("chat_template", 5),
]


@pytest.mark.parametrize(("key", "value"), TOKENIZER, ids=lambda part: str(part)[:20])
def test_a_damaged_tokenizer_config(tmp_path: Path, key: str, value: Any):
    folder = random_checkpoint(tmp_path)
    change(folder / "tokenizer_config.json", key, value)
    with pytest.raises(ModelError, match="tokenizer_config"):
        load(folder, device="cpu")


def test_a_chat_template_that_is_not_text(tmp_path: Path):
    folder = random_checkpoint(tmp_path)
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match="chat template"):
        load(folder, device="cpu")


@pytest.mark.parametrize("weight_map", [[], None, {}, {"a": 5}, {"a": None}], ids=str)
def test_an_index_without_a_map(tmp_path: Path, weight_map: Any):
    folder = random_checkpoint(tmp_path, shards=2)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelError, match="weight_map"):
        load(folder, device="cpu")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn], ids=str)
def test_weights_that_are_not_plain_numbers(tmp_path: Path, dtype: torch.dtype):
    folder = random_checkpoint(tmp_path)
    weights = load_file(folder / "model.safetensors")
    name = next(iter(weights))
    save_file(weights | {name: weights[name].to(dtype)}, folder / "model.safetensors")
    with pytest.raises(ModelError, match="can be loaded"):
        load(folder, device="cpu")


@pytest.mark.parametrize("device", [None, "mps", "meta", "nowhere"], ids=str)
def test_a_device_that_is_not_there(tmp_path: Path, device: Any):
    with pytest.raises(ModelError, match="device"):
        load(random_checkpoint(tmp_path), device=device)


@pytest.mark.parametrize("model", [5, b"x", "", "~nouser-at-all/x"], ids=str)
def test_what_names_no_model(model: Any):
    with pytest.raises(ModelError):
        load(model)
