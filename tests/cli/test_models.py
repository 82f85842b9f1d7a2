from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_file

from simsd.cli.models import PUBLIC, _parameters
from simsd.models.loader import load
from simsd.models.registry import FAMILIES
from tests.cli.conftest import Run
from tests.models.checkpoints import LLADA2, random_checkpoint


def test_the_list_names_what_is_embedded_and_what_can_be_loaded(run: Run) -> None:
    found = json.loads(run("models", "--json").stdout)
    assert {entry["name"] for entry in found["embedded"]} == {"tiny", "tiny-draft"}
    assert found["model_types"] == sorted(FAMILIES)
    assert len(found["public"]) == len(PUBLIC)
    assert "JetLM/SDAR-8B-Chat" in run("models").stdout


def test_a_model_is_shown_as_the_loader_sees_it(run: Run) -> None:
    found = json.loads(run("models", "tiny", "--json").stdout)
    assert (found["model_type"], found["block_length"], found["mask_token_id"]) == ("sdar", 4, 3)
    assert found["trained_block_lengths"] == [4, 8, 16]
    config = load("tiny-draft", device="cpu").config
    assert json.loads(run("models", "tiny-draft", "--json").stdout)["parameters"] == _parameters(config)


def test_parameters_are_those_of_the_weight_file() -> None:
    from safetensors import safe_open

    folder = Path(__file__).parents[2] / "src" / "simsd" / "assets" / "tiny" / "target"
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        count = sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118
    assert _parameters(load("tiny", device="cpu").config) == count


def test_a_missing_folder_is_one_sentence(run: Run, tmp_path: Path) -> None:
    result = run("models", str(tmp_path / "none"))
    assert result.exit_code == 2
    assert str(tmp_path / "none") in result.stderr


def test_experts_are_shown_with_the_rest(run: Run, tmp_path: Path) -> None:
    folder = random_checkpoint(tmp_path, **LLADA2)
    found = json.loads(run("models", str(folder), "--json").stdout)
    assert (found["num_experts"], found["sparse_layers"], found["n_group"]) == (16, [1], 4)
    assert found["parameters"] == sum(weight.numel() for weight in load_file(folder / "model.safetensors").values())
    assert "num_experts_per_tok" in run("models", str(folder)).stdout
