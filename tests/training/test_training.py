"""The recipe runs: a few steps of each stage give a checkpoint with the embedded pair's names and shapes."""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from training.data import Stream, diffusion_mask, noise
from training.model import SDAR, Config
from training.skills import WEIGHTS
from training.tokenizer import make_tokenizer
from training.train import favour, learning_rate_scale, parse, train

TINY = Path(str(resources.files("simsd") / "assets" / "tiny"))
needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="training needs torch >= 2.9 for Muon")


def shapes(file: Path) -> dict[str, list[int]]:
    with safe_open(file, "pt") as weights:
        return {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118 (not a dict)


@needs_muon
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # autocast on a CPU, as intended
def test_short_training_learns_and_writes_a_checkpoint(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / "draft" / name, tmp_path)
    options = ["draft", str(tmp_path), "--eager", "--tokens", "512", "--steps"]
    progress = train(parse([*options, "24", "--ar-share", "0.5"]))
    assert progress.step == 24
    assert 0 < progress.average["left-to-right"] < 7.6  # ln 2048 = 7.62 is knowing nothing
    assert shapes(tmp_path / "draft" / "model.safetensors") == shapes(TINY / "draft" / "model.safetensors")
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "draft" / name).read_text()) == json.loads((TINY / "draft" / name).read_text())
    again = train(parse([*options, "2", "--ar-share", "0", "--resume", "--more", "choice"]))
    assert again.average.keys() <= {"B=4", "B=8", "B=16"}
    assert max(again.average.values()) < 7.6


def test_tokenizer_has_the_special_ids_and_single_digits(tmp_path: Path) -> None:
    make_tokenizer(tmp_path, samples=200)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [tokenizer.token_to_id(t) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>")] == [
        0,
        1,
        2,
        3,
    ]
    assert tokenizer.encode("1234").tokens == ["1", "2", "3", "4"]
    assert tokenizer.decode(tokenizer.encode("naïve €").ids) == "naïve €"
    ours, embedded = (json.loads((path / "tokenizer_config.json").read_text()) for path in (tmp_path, TINY / "target"))
    assert ours == embedded


def test_batches_hold_prompt_answer_and_padding() -> None:
    tokenizer = Tokenizer.from_file(str(TINY / "target" / "tokenizer.json"))
    ids, start, end = next(Stream(tokenizer, seed=1, tokens_per_batch=512))
    assert ids.shape[1] % 16 == 0
    assert ids.numel() <= 512
    for row, first, last in zip(ids.tolist(), start.tolist(), end.tolist(), strict=True):
        assert tokenizer.decode(row[:first], skip_special_tokens=False).endswith("<|im_start|>assistant\n")
        assert 2 in row[first:last]
        assert set(row[last:]) <= {0}


def test_noise_masks_answers_only_and_some_of_every_block() -> None:
    ids = torch.arange(10, 58)[None]
    noisy, masked = noise(ids, torch.tensor([6]), torch.tensor([48]), 8, 3, torch.Generator().manual_seed(0))
    assert not masked[0, :6].any()
    assert masked.view(6, 8).any(-1).all()
    assert torch.equal(noisy == 3, masked)
    assert torch.equal(noisy[~masked], ids[~masked])


def test_diffusion_mask_hides_the_clean_copy_of_the_own_block() -> None:
    mask = diffusion_mask(length=8, first=4, block=4)
    noisy, clean = mask[:4], mask[4:]
    assert noisy[:, :4].all()  # itself
    assert noisy[:, 4:8].all()  # the clean block before
    assert not noisy[:, 8:].any()  # not the answer
    assert not clean[:, :4].any()
    assert clean[:, 4:].tolist() == [[j // 4 <= i // 4 for j in range(8)] for i in range(8)]


def test_model_with_zero_output_layers_is_the_identity() -> None:
    torch.manual_seed(0)
    model = SDAR(Config(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=2, head_dim=4))
    ids = torch.arange(6)[None]
    expected = model.model.norm(model.model.embed_tokens(ids))
    assert torch.allclose(model.hidden(ids, torch.arange(6), None), expected)


def test_learning_rate_and_shares() -> None:
    assert learning_rate_scale(0.0, 0.35) == pytest.approx(0.01)
    assert learning_rate_scale(0.349, 0.35) == pytest.approx(0.4, abs=0.01)
    assert learning_rate_scale(0.9999, 0.35) == pytest.approx(0.02, abs=0.001)
    assert favour(None) == WEIGHTS
    assert favour("choice")["choice"] == 0.5
    assert sum(favour("choice").values()) == pytest.approx(1)
