"""Loading: shards, tied heads, dtypes, the embedded pair, and one clear sentence for everything that can be wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from safetensors.torch import load_file

from simsd.errors import ModelError, PairError
from simsd.models import loader
from simsd.models.loader import EMBEDDED, LoadedModel, check_pair, load, pick_device, pick_dtype
from tests.models.checkpoints import random_checkpoint, random_config, random_weights, save_weights, write_json


def some_logits(loaded: LoadedModel) -> torch.Tensor:
    model = loaded.model
    with torch.inference_mode():
        ids = torch.arange(8)[None]
        return model.head(model.forward(ids, ids, None, model.make_cache(1, 8), 0, 8))


@pytest.mark.parametrize("shards", [2, 5])
def test_shards_load_like_one_file(tmp_path: Path, shards: int):
    one = load(random_checkpoint(tmp_path / "one"), "float64", "cpu")
    many = load(random_checkpoint(tmp_path / "many", shards=shards), "float64", "cpu")
    assert torch.equal(some_logits(one), some_logits(many))


def test_tied_checkpoint_that_stores_its_head_anyway(tmp_path: Path):
    folder = random_checkpoint(tmp_path, tie_word_embeddings=True)
    before = some_logits(load(folder, "float64", "cpu"))
    weights = load_file(folder / "model.safetensors")
    save_weights(folder, weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()})
    assert torch.equal(some_logits(load(folder, "float64", "cpu")), before)


def test_loaded_model_carries_resolved_settings(tmp_path: Path):
    loaded = load(random_checkpoint(tmp_path / "SDAR-b8", block_size=None, mask_token_id=None), mask_token_id=259)
    assert (loaded.config.block_length, loaded.config.mask_token_id) == (8, 259)
    assert loaded.config.stop_token_ids == (258, 256)
    assert loaded.tokenizer.mask_token_id == 259
    assert load(tmp_path / "SDAR-b8", mask_token_id=1, block_length=2).config.block_length == 2


@pytest.mark.parametrize(("asked", "got"), [("auto", torch.float32), ("bfloat16", torch.bfloat16)])
def test_dtype_of_a_small_checkpoint_on_a_cpu(tmp_path: Path, asked: str, got: torch.dtype):
    folder = random_checkpoint(tmp_path, dtype=torch.bfloat16, torch_dtype="bfloat16")
    model = load(folder, asked, "cpu").model
    assert (model.dtype, model.make_cache(1, 4).buffer.dtype) == (got, got)


def test_auto_dtype_looks_at_the_device_and_the_size(tmp_path: Path):
    config = load(random_checkpoint(tmp_path, torch_dtype="float16"), device="cpu").config
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert pick_dtype("auto", cpu, config, 2 << 30) == torch.bfloat16
    assert pick_dtype("auto", cpu, config, 2 << 20) == torch.float32
    assert pick_dtype("auto", cuda, config, 2 << 20) == torch.float16
    assert pick_dtype("auto", cuda, replace(config, torch_dtype=None), 0) == torch.bfloat16
    with pytest.raises(ModelError, match=r"'int8' is not supported; use auto or one of float32"):
        pick_dtype("int8", cpu, config, 0)


def test_unknown_or_absent_devices_are_refused():
    with pytest.raises(ModelError, match="'quantum' is unknown"):
        pick_device("quantum")
    with pytest.raises(ModelError, match="'cuda:99' is not there"):
        pick_device("cuda:99")
    assert pick_device("cuda:99", here=False) == torch.device("cuda:99")  # for a look at another machine's needs


def test_missing_weights_are_named(tmp_path: Path):
    folder = random_checkpoint(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"], weights["lm_head.weight"]
    save_weights(folder, weights)
    with pytest.raises(
        ModelError, match=r"lacks 2 weights .*model\.layers\.1\.mlp\.up_proj\.weight, lm_head\.weight\."
    ):
        load(folder)


def test_unexpected_weights_are_named_and_long_lists_cut(tmp_path: Path):
    folder = random_checkpoint(tmp_path)
    weights = load_file(folder / "model.safetensors")
    save_weights(folder, weights | {f"model.layers.{i}.extra": torch.ones(1) for i in range(10, 20)})
    with pytest.raises(ModelError, match=r"10 weights of another model: model\.layers\.10\.extra.* and 4 more"):
        load(folder)


def test_wrong_shapes_are_named_with_both(tmp_path: Path):
    folder = random_checkpoint(tmp_path)
    write_json(folder / "config.json", random_config(intermediate_size=96))
    with pytest.raises(ModelError, match=r"gate_proj\.weight is \[80, 48\], not \[96, 48\]"):
        load(folder)


def test_biases_that_the_config_does_not_announce_are_refused(tmp_path: Path):
    folder = random_checkpoint(tmp_path)
    save_weights(folder, random_weights(random_config(attention_bias=True)))
    with pytest.raises(ModelError, match=r"q_proj\.bias"):
        load(folder)


def test_folder_without_weights(tmp_path: Path):
    folder = random_checkpoint(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        load(folder)


def test_missing_and_damaged_shards_are_named(tmp_path: Path):
    folder = random_checkpoint(tmp_path, shards=2)
    shard = folder / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:50])
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors is not a readable"):
        load(folder)
    shard.unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors does not exist"):
        load(folder)


@pytest.mark.parametrize("model", ["/nowhere/at/all", "./nowhere", Path("nowhere/at-all"), "a/b/c"])
def test_folder_that_is_not_there(model: str | Path):
    with pytest.raises(ModelError, match="no checkpoint folder"):
        load(model)


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (LocalEntryNotFoundError("offline"), "hub cannot be reached"),
        (HFValidationError("bad name"), "nor a model on the hub"),
        (OSError("disk full"), "disk full"),
    ],
)
def test_hub_failures_are_one_clear_sentence(monkeypatch: pytest.MonkeyPatch, failure: Exception, words: str):
    def fail(*_: object, **__: object) -> str:
        raise failure

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelError, match=f"'someone/something' .*{words}"):
        load("someone/something")


def test_hub_name_downloads_what_is_needed_and_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = random_checkpoint(tmp_path / "SDAR-tiny-b8", block_size=None)
    asked = {}

    def download(name: str, **options: object) -> str:
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    loaded = load("someone/SDAR-tiny-b8")
    assert asked["name"] == loaded.name == "someone/SDAR-tiny-b8"
    assert loaded.config.block_length == 8
    assert not any("py" in pattern or "bin" in pattern for pattern in asked["allow_patterns"])
    assert loader.resolve("someone/SDAR-tiny-b8", weights=False) == folder
    assert set(asked["allow_patterns"]) == {"config.json", "generation_config.json"}


@pytest.mark.parametrize("name", list(EMBEDDED))
def test_embedded_models_load_and_know_their_block_lengths(name: str):
    loaded = load(name, device="cpu")
    assert loaded.config.trained_block_lengths == (4, 8, 16)
    assert loaded.model.dtype == torch.float32
    assert some_logits(loaded).isfinite().all()


def test_embedded_pair_is_a_pair():
    check_pair(load("tiny", device="cpu"), load("tiny-draft", device="cpu"))


def test_missing_embedded_model(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loader, "EMBEDDED", {"tiny": "tiny/nothing"})
    with pytest.raises(ModelError, match="missing from this installation"):
        load("tiny")


def test_pairs_that_do_not_fit_are_refused_with_both_values(tmp_path: Path):
    target = load(random_checkpoint(tmp_path / "target"), device="cpu")
    check_pair(target, load(random_checkpoint(tmp_path / "draft", hidden_size=32, seed=1), device="cpu"))
    wide = load(random_checkpoint(tmp_path / "wide", vocab_size=300), device="cpu")
    with pytest.raises(
        PairError, match=r"wide cannot draft for .*target: their vocabulary sizes differ \(300 and 272\)"
    ):
        check_pair(target, wide)
    masked = load(tmp_path / "draft", device="cpu", mask_token_id=1)
    with pytest.raises(PairError, match=r"MASK ids differ \(1 and 259\)"):
        check_pair(target, masked)
    other = replace(target, tokenizer=load("tiny", device="cpu").tokenizer)
    with pytest.raises(PairError, match=r"tokenizers differ \([0-9a-f]{16} and [0-9a-f]{16}\)"):
        check_pair(target, other)
