"""What cannot fit is refused in one sentence, with what would help; what is told is what a process takes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from simsd import LLM
from simsd.errors import ConfigError, FitError, ModelError
from simsd.models import fit
from simsd.models.fit import check_fits, needed_bytes
from simsd.models.memory import place
from tests.models.checkpoints import random_checkpoint, random_config, write_json

CPU, GPU = torch.device("cpu"), torch.device("cuda:1")


def with_free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(fit, "free_bytes", lambda device: count)


def test_what_cannot_fit_is_one_sentence_with_both_sizes(monkeypatch: pytest.MonkeyPatch):
    pair = [place("tiny", "float32", "cpu"), place("tiny-draft", "float32", "cpu")]
    needed = needed_bytes(pair, 4, 1024)[CPU]
    with_free(monkeypatch, needed)
    check_fits(pair, 4, 1024)
    with_free(monkeypatch, needed - 1)
    with pytest.raises(ModelError) as caught:
        check_fits(pair, 4, 1024)
    assert str(caught.value) == (
        f"tiny and tiny-draft need {needed / 2**20:.1f} MiB, but {(needed - 1) / 2**20:.1f} MiB are free on cpu; use "
        "dtype='bfloat16', quantize='int8', a smaller max_model_len, a smaller max_num_seqs or a smaller model."
    )


def test_only_what_would_help_is_advised(monkeypatch: pytest.MonkeyPatch):
    with_free(monkeypatch, 0)
    with pytest.raises(ModelError, match=r"^tiny needs .* are free on cpu; use a smaller model\.$"):
        check_fits([place("tiny", "bfloat16", "cpu", int8=True)])


def test_each_device_is_asked_for_its_own(monkeypatch: pytest.MonkeyPatch):
    target = place("tiny", "bfloat16", "cpu")
    draft = replace(place("tiny-draft", "bfloat16", "cpu"), devices=(torch.device("cuda:1"),))
    room = {"cpu": needed_bytes([target, draft], 1, None)[CPU], "cuda:1": needed_bytes([draft], 1, None)[GPU] - 1}
    monkeypatch.setattr(fit, "free_bytes", lambda device: room[str(device)])
    with pytest.raises(ModelError, match=r"^tiny-draft needs .* free on cuda:1; use quantize='int8' or a smaller"):
        check_fits([target, draft])
    room["cuda:1"] += 1
    check_fits([target, draft])


def test_each_gpu_is_asked_for_one_ranks_part(monkeypatch: pytest.MonkeyPatch):
    gpus = tuple(torch.device("cuda", rank) for rank in range(2))
    split = [replace(place(name, "float32", "cpu"), devices=gpus) for name in ("tiny", "tiny-draft")]
    whole = [replace(one, devices=gpus[:1]) for one in split]
    needed = needed_bytes(split, 1, None)
    assert set(needed) == set(gpus)
    assert needed[gpus[0]] == needed[gpus[1]] < 0.8 * needed_bytes(whole, 1, None)[gpus[0]]
    room = {gpus[0]: needed[gpus[0]], gpus[1]: needed[gpus[1]] - 1}
    monkeypatch.setattr(fit, "free_bytes", room.__getitem__)
    with pytest.raises(ModelError, match=r"^tiny and tiny-draft need .* are free on cuda:1; use "):
        check_fits(split)
    room[gpus[1]] += 1
    check_fits(split)


def test_what_cannot_be_split_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"tensor_parallel_size is 3, but the .* cannot be split evenly"):
        place(random_checkpoint(tmp_path), device="cpu", ranks=3)


def test_nothing_is_read_of_models_that_cannot_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    folder = tmp_path / "huge"
    folder.mkdir()
    write_json(folder / "config.json", random_config(intermediate_size=1 << 36))
    with pytest.raises(ModelError, match=r"needs [\d.]+ GiB, but [\d.]+ GiB are free on cpu"):
        LLM(folder, device="cpu")
    write_json(folder / "config.json", {})
    with pytest.raises(ModelError, match=r"config\.json lacks"):
        LLM("tiny", draft_model=folder, device="cpu")


def test_a_long_text_may_be_what_cannot_fit(monkeypatch: pytest.MonkeyPatch):
    pair = [place(name, "float32", "cpu") for name in ("tiny", "tiny-draft")]
    with_free(monkeypatch, needed_bytes(pair, 1, 512)[CPU])
    assert LLM(device="cpu", dtype="float32", max_model_len=512).max_model_len == 512
    with pytest.raises(ModelError, match="a smaller max_model_len"):
        LLM(device="cpu", dtype="float32", max_model_len=1024)


def test_what_helps_alone_goes_before_what_helps_together(monkeypatch: pytest.MonkeyPatch):
    pair = [place(name, "float32", "cpu") for name in ("tiny", "tiny-draft")]
    long = needed_bytes(pair, 8, 1024)[CPU]
    with_free(monkeypatch, max(needed_bytes(pair, 8, 256)[CPU], needed_bytes(pair, 1, 1024)[CPU]))
    with pytest.raises(FitError) as caught:
        check_fits(pair, 8, 1024)
    assert [name for name, _ in caught.value.ways] == ["max_model_len", "max_num_seqs"]
    small = [replace(model, dtype=torch.bfloat16, int8=True) for model in pair]
    with_free(monkeypatch, needed_bytes(small, 1, None)[CPU])
    with pytest.raises(FitError, match=r"use dtype='bfloat16' together with .* or a smaller model"):
        check_fits(pair, 8, 1024)
    with_free(monkeypatch, needed_bytes(small, 1, None)[CPU] - 1)
    with pytest.raises(FitError, match=r"use a smaller model\.$"):
        check_fits(pair, 8, 1024)
    assert long > needed_bytes(small, 1, None)[CPU]


PEAK = """
import json, sys, threading, time
import simsd.llm
from simsd import LLM, SamplingParams

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) << 10

before, most, over = anonymous(), 0, False
def watch():
    global most
    while not over:
        most = max(most, anonymous())
        time.sleep(0.001)
thread = threading.Thread(target=watch)
thread.start()
llm = LLM(sys.argv[1], device="cpu", dtype="float32", prefix_caching=False)
llm.generate([[1] * 600], SamplingParams(max_tokens=8, ignore_eos=True))
over = True
thread.join()
print(json.dumps(max(most, anonymous()) - before))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read as on Linux")
def test_a_process_takes_about_what_was_told(tmp_path: Path):
    """Beyond what Python and its modules take; the tokenizer of this checkpoint is far smaller than its vocabulary."""
    sizes: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4, "vocab_size": 9000}
    folder = random_checkpoint(tmp_path, **sizes, max_position_embeddings=2048)
    told = needed_bytes([place(folder, "float32", "cpu")], 1, 608)[CPU] - 9000 * fit.TOKEN
    command = [sys.executable, "-c", PEAK, str(folder)]
    peak = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert 0.8 < told / peak < 1.25, (told >> 20, peak >> 20)


def test_each_further_rank_is_a_process():
    pair = [place(name, "float32", "cpu", ranks=2) for name in ("tiny", "tiny-draft")]
    whole = [place(name, "float32", "cpu") for name in ("tiny", "tiny-draft")]
    assert fit.overhead_bytes(pair, CPU) - fit.overhead_bytes(whole, CPU) >= fit.PROCESS
