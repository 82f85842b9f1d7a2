from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from simsd.models import fit, memory
from simsd.models.cache import KVCache
from simsd.models.loader import load
from tests.cli.conftest import Run
from tests.models.checkpoints import random_checkpoint, random_config, write_json

CPU = ("--device", "cpu")
CPU_DEVICE = torch.device("cpu")


def test_the_embedded_pair_is_shown_with_what_is_free(run: Run) -> None:
    result = run("models", "--memory", *CPU)
    assert result.exit_code == 0
    for words in ("tiny-draft", "1 sequence of 1024 tokens", "cache of a token", "needed", "free"):
        assert words in result.stdout


def test_the_figures_are_the_models(run: Run) -> None:
    sizes = ("--max-num-seqs", "3", "--max-model-len", "500", "--dtype", "bfloat16")
    found = json.loads(run("models", "tiny", "--memory", "--json", *CPU, *sizes).stdout)
    assert (found["max_num_seqs"], found["max_model_len"]) == (3, 500)
    target, draft = found["models"]
    assert (target["name"], draft["name"]) == ("tiny", "tiny-draft")
    model = load("tiny", "bfloat16", "cpu").model
    cache: KVCache = model.make_cache(3, 500)
    assert target["cache_bytes"] == cache.nbytes == 3 * 500 * target["cache_bytes_per_token"]
    assert target["weight_bytes"] == sum(target["weight_bytes_by_part"].values())
    placed = [memory.place(name, "bfloat16", "cpu") for name in ("tiny", "tiny-draft")]
    working = max(*(one["working_bytes"] for one in found["models"]), memory.measuring_bytes(placed[0], 500))
    held = sum(one["weight_bytes"] + one["cache_bytes"] for one in found["models"])
    (device,) = found["devices"]
    assert device["needed_bytes"] == held + working + fit.overhead_bytes(placed, CPU_DEVICE)
    assert device["needed_bytes_drafting"] == fit.needed_bytes(placed, 3, 500, drafting=True)[CPU_DEVICE]
    assert device["needed_bytes_drafting"] > device["needed_bytes"]


def test_int8_weights_are_counted_where_they_are_asked_for(run: Run) -> None:
    found = {
        kind: json.loads(run("models", "--memory", "--json", "--quantize", kind, *CPU).stdout)["models"]
        for kind in ("none", "int8-draft", "int8")
    }
    weights = {kind: [one["weight_bytes"] for one in models] for kind, models in found.items()}
    assert weights["int8-draft"] == [weights["none"][0], weights["int8"][1]]
    assert weights["int8"][0] < weights["none"][0]
    assert "int8 weights" in run("models", "--memory", "--quantize", "int8", *CPU).stdout


def test_the_part_of_one_rank_is_told(run: Run) -> None:
    split = ("--tensor-parallel-size", "2")
    whole, part = (json.loads(run("models", "--memory", "--json", *CPU, *more).stdout) for more in ((), split))
    assert [one["tensor_parallel_size"] for one in whole["models"] + part["models"]] == [1, 1, 2, 2]
    for one, half in zip(whole["models"], part["models"], strict=True):
        assert half["cache_bytes"] == one["cache_bytes"] / 2
        assert 0.5 < half["weight_bytes"] / one["weight_bytes"] < 0.7
    assert part["devices"][0]["needed_bytes"] > whole["devices"][0]["needed_bytes"]  # both ranks share the memory
    assert "the part of one rank of 2" in " ".join(run("models", "--memory", *CPU, *split).stdout.split())


@pytest.mark.parametrize(
    ("flags", "devices"),
    [
        (("--device", "cuda"), ["cuda:0"]),
        (("--device", "cuda:99"), ["cuda:99"]),
        (("--device", "cuda", "--tensor-parallel-size", "2"), ["cuda:0", "cuda:1"]),
        (("--device", "cuda:0", "--draft-device", "cuda:1"), ["cuda:0", "cuda:1"]),
        ((*CPU, "--draft-device", "cuda"), ["cpu", "cuda:0"]),
    ],
    ids=str,
)
def test_a_gpu_elsewhere_can_be_planned_for(
    run: Run, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], devices: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    found = json.loads(run("models", "--memory", "--json", *flags).stdout)
    assert [place["device"] for place in found["devices"]] == devices
    assert all(place["needed_bytes"] > 0 for place in found["devices"])
    assert {place["device"] for place in found["devices"] if place["free_bytes"] is None} == {*devices} - {"cpu"}
    assert all(one["dtype"] == "bfloat16" for one in found["models"] if one["device"] != "cpu")  # as it would run there
    shown = run("models", "--memory", *flags)
    assert shown.exit_code == 0
    assert shown.stdout.count("not in this machine") == len({*devices} - {"cpu"})


def test_a_gpu_that_is_there_must_have_room_even_if_another_is_not(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "free_bytes", lambda device: 1 << 10 if device.type == "cpu" else None)
    result = run("models", "--memory", "--draft-device", "cuda:99", *CPU)
    assert result.exit_code == 2
    assert "tiny needs" in result.stderr and "are free on cpu" in result.stderr


@pytest.mark.parametrize(("size", "problem"), [("0", "must be 1 or more"), ("3", "cannot be split evenly")])
def test_a_split_that_cannot_be_is_refused(run: Run, size: str, problem: str) -> None:
    result = run("models", "--memory", "--tensor-parallel-size", size, *CPU)
    assert result.exit_code == 2
    assert problem in " ".join(result.stderr.split())


def test_a_configuration_alone_is_enough(run: Run, tmp_path: Path) -> None:
    folder = random_checkpoint(tmp_path)
    for file in folder.iterdir():
        if file.name != "config.json":
            file.unlink()
    result = run("models", str(folder), "--memory", "--json", "--max-model-len", "9999", *CPU)
    found = json.loads(result.stdout)
    assert found["max_model_len"] == 256  # no more than the model allows
    assert result.stderr == f"simsd: --max-model-len is 9999; {folder} has positions for 256 tokens.\n"
    assert run("models", str(folder), "--memory", "--max-model-len", "256", *CPU).stderr == ""
    assert run("models", str(folder), "--memory", *CPU).stderr == ""  # nobody asked for the default
    assert found["models"][0]["parameters"] == sum(memory.parameters(memory.place(folder).config).values())


def test_a_mask_that_the_file_has_wrong_is_given_as_a_flag(run: Run, tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", random_config(mask_token_id=999))
    for more in ((), ("--memory", *CPU)):
        wrong = run("models", str(tmp_path), "--json", *more)
        assert wrong.exit_code == 2
        assert "MASK id 999 is outside the vocabulary" in wrong.stderr
        right = run("models", str(tmp_path), "--json", "--mask-token-id", "259", "--block-length", "8", *more)
        assert right.exit_code == 0
    told = json.loads(run("models", str(tmp_path), "--json", "--mask-token-id", "5", "--block-length", "8").stdout)
    assert (told["mask_token_id"], told["block_length"]) == (5, 8)


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_what_cannot_fit_ends_with_one_sentence(
    run: Run, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    monkeypatch.setattr(fit, "free_bytes", lambda device: 1 << 20)
    result = run("models", "--memory", *CPU, *flags)
    assert result.exit_code == 2
    assert result.stderr.startswith("simsd: tiny and tiny-draft need ")
    assert "but 1.0 MiB are free on cpu; use " in result.stderr
    assert len(result.stderr.splitlines()) == 1
    if flags:
        found = json.loads(result.stdout)
        assert (found["error"]["type"], len(found["models"]), len(found["devices"])) == ("FitError", 2, 1)
        assert f"simsd: {found['error']['message']}\n" == result.stderr


def test_advice_names_flags_as_they_are_typed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ("--max-num-seqs", "8", "--dtype", "float32")
    needed = json.loads(run("models", "--memory", "--json", *CPU, *sizes).stdout)["devices"][0]["needed_bytes"]
    monkeypatch.setattr(fit, "free_bytes", lambda device: needed - 1)
    for told in (run("models", "--memory", *CPU, *sizes), run("models", "--memory", "--json", *CPU, *sizes)):
        for words in ("--dtype bfloat16", "--quantize int8", "a smaller --max-model-len", "a smaller --max-num-seqs"):
            assert words in told.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--max-num-seqs", "4"), "--max-num-seqs is for --memory"),
        (("tiny", "--quantize", "int8"), "--quantize is for --memory"),
        (("--mask-token-id", "5"), "--mask-token-id is of one model; name it"),
        (("tiny", "--mask-token-id", "-5"), "--mask-token-id is -5; it must be 0 or more"),
        (("--memory", "--max-num-seqs", "0"), "--max-num-seqs is 0"),
        (("--memory", "--max-model-len", "-1"), "--max-model-len is -1"),
        (("--memory", "--quantize", "int4"), "--quantize is 'int4'; choose one of none, int8-draft, int8"),
        (("tiny-draft", "--memory", "--quantize", "int8-draft"), "there is no draft model"),
        (("--memory", "--device", "mps"), "'mps' is not supported"),
        (("--memory", "--device", "cuda:1", "--tensor-parallel-size", "2"), "'cuda:1' is one GPU"),
    ],
)
def test_mistakes_are_one_sentence(run: Run, arguments: tuple[str, ...], says: str) -> None:
    result = run("models", *arguments)
    assert result.exit_code == 2
    assert says in result.stderr
