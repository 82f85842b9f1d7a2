"""What is told from a configuration is what the loaded model holds; what cannot fit is refused in one sentence."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from simsd import LLM, SamplingParams
from simsd.core import sampling
from simsd.engine import costs, runner
from simsd.models import available, linear, memory
from simsd.models.config import MoEConfig
from simsd.models.fit import needed_bytes, overhead_bytes
from simsd.models.linear import Linear, packing
from simsd.models.loader import load, look_at
from simsd.models.memory import cache_bytes, parameters, place, verify_rows, weight_bytes, working_bytes
from simsd.models.shard import Shard
from simsd.native.library import kernels
from tests.models.checkpoints import LLADA2, MOE, random_checkpoint
from tests.models.weigh import weigh

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 64,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "sdar": SIZES,
    "sdar, tied": SIZES | {"tie_word_embeddings": True},
    "sdar, biases": SIZES | {"attention_bias": True},
    "sdar_moe": SIZES | MOE | {"moe_intermediate_size": 64},
    "llada2_moe": SIZES | LLADA2 | {"moe_intermediate_size": 64},
}


@pytest.fixture(params=[True, False], ids=["own kernels", "oneDNN"])
def packed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With our own kernels where there are any, and without."""
    if not request.param:
        monkeypatch.setattr(linear, "kernels", lambda: None)


@pytest.mark.usefixtures("packed")
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", list(FAMILIES))
def test_weights_take_what_was_told(tmp_path: Path, name: str, dtype: str, int8: bool):
    folder = random_checkpoint(tmp_path, **FAMILIES[name])
    told = place(folder, dtype, "cpu", int8=int8)
    model = load(folder, dtype, "cpu", int8=int8).model
    assert told.weight_bytes == pytest.approx(weigh(model), rel=0.01)
    assert cache_bytes(told, 3, 50) == model.make_cache(3, 50).nbytes
    assert weight_bytes(told)["rotary table"] == model.rotary.nbytes


# Uneven vocabulary, inner dimensions and experts, so that a rank's part is not the whole divided by the ranks.
UNEVEN: dict[str, Any] = {"vocab_size": 515, "intermediate_size": 254, "num_experts": 13}


@pytest.mark.usefixtures("packed")
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_rank_takes_what_was_told(tmp_path: Path, name: str, dtype: str, int8: bool):
    sizes = {size: value for size, value in UNEVEN.items() if size != "num_experts" or name == "sdar_moe"}
    folder = random_checkpoint(tmp_path, **FAMILIES[name] | sizes)
    told = place(folder, dtype, "cpu", int8=int8, ranks=2)
    checkpoint, _ = look_at(folder, dtype, CPU, int8=int8)
    ranks = [checkpoint.build(CPU, Shard(rank, 2)) for rank in range(2)]
    weights = [weigh(rank) for rank in ranks]
    assert told.weight_bytes == pytest.approx(weights[0], rel=0.01)  # nor does a slice keep the whole it was read from
    assert max(weights) == weights[0]
    assert cache_bytes(told, 3, 50) == ranks[0].make_cache(3, 50).nbytes
    (needed,) = needed_bytes([told], 3, 50).values()
    held = 2 * (told.weight_bytes + cache_bytes(told, 3, 50)) + working_bytes(told, 3, 50)
    assert needed == held + overhead_bytes([told], CPU)


@pytest.mark.parametrize("name", ["tiny", "tiny-draft"])
def test_the_embedded_pair_takes_what_was_told(name: str):
    assert place(name, device="cpu").weight_bytes == pytest.approx(weigh(load(name, device="cpu").model), rel=0.01)


def test_a_packed_layer_drops_its_plain_weight():
    if packing("cpu", torch.float32) is None:
        pytest.skip("no kernels of our own, and no oneDNN")
    weight = torch.randn(128, 256)
    plain = weakref.ref(weight)
    layer = Linear(weight)
    del weight
    assert plain() is None
    assert weigh(layer) == 128 * 256 * 4


def test_parts_add_up_to_the_parameters_of_the_checkpoint(tmp_path: Path):
    moe = parameters(place(random_checkpoint(tmp_path, **FAMILIES["llada2_moe"]), device="cpu").config)
    assert set(moe) == {"embedding", "head", "attention", "norms", "mlp", "experts", "router"}
    assert moe["experts"] == 17 * 3 * 64 * 128  # one sparse layer of sixteen, and a shared one
    assert moe["router"] == 16 * 128 + 16
    assert moe["mlp"] == 3 * 256 * 128


def test_a_folder_without_weights_is_enough(tmp_path: Path):
    folder = random_checkpoint(tmp_path, **SIZES)
    whole = place(folder, "bfloat16", "cpu").weight_bytes
    for file in folder.iterdir():
        if file.name != "config.json":
            file.unlink()
    assert place(folder, "bfloat16", "cpu").weight_bytes == whole


def test_a_public_model_by_its_configuration():
    """Numbers of parameters that its authors state: 30.5 billion, of which 0.6 in embedding and head."""
    tiny = place("tiny", "bfloat16", "cpu")
    moe = MoEConfig(128, 8, 768, tuple(range(48)))
    sizes: dict[str, int] = {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "head_dim": 128}
    heads = {"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4}
    config = replace(tiny.config, model_type="sdar_moe", tie_word_embeddings=False, moe=moe, **sizes, **heads)
    large = replace(tiny, config=config)
    assert sum(parameters(config).values()) == pytest.approx(30.5e9, rel=0.002)
    assert large.weight_bytes == pytest.approx(61.1e9, rel=0.005)
    assert replace(large, int8=True).weight_bytes == pytest.approx(31.4e9, rel=0.01)
    assert cache_bytes(large, 1, 4096) == 48 * 2 * 4 * 128 * 4096 * 2


def peak_bytes(work: Any) -> int:
    """The most bytes that what `work` allocates came to at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    held = most = 0
    events: Any = seen.profiler.kineto_results.events()  # pyright: ignore[reportOptionalMemberAccess]
    for event in events:
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


@pytest.mark.usefixtures("packed")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("sequences", "length"), [(1, 80), (8, 80), (1, 1500)])
def test_working_memory_is_enough_and_not_far_too_much(tmp_path: Path, sequences: int, length: int, dtype: str):
    """Sampled, with the chain of two blocks: half the rows that are counted with. Caches have their size already."""
    sizes: dict[str, Any] = SIZES | {"vocab_size": 8000, "max_position_embeddings": 2048}
    folder = random_checkpoint(tmp_path, **sizes)
    options: dict[str, Any] = {"states": "chain", "num_speculative_tokens": 8, "prefix_caching": False}
    llm = LLM(folder, draft_model=folder, device="cpu", dtype=dtype, **options)
    params = SamplingParams(max_tokens=8, temperature=1.0, seed=0, ignore_eos=True)
    prompts = [[1 + i] * length for i in range(sequences)]
    llm.generate(prompts, params)
    told = working_bytes(place(folder, dtype, "cpu"), sequences, length + 16, verify_rows(4))
    own = kernels()
    if own is not None:
        own.release()
    before = 0 if own is None else own.kept_bytes
    peak = peak_bytes(lambda: llm.generate(prompts, params))
    kept = 0 if own is None else own.kept_bytes - before
    assert told / 2.5 < peak + kept < told


def test_working_memory_counts_in_the_runners_pieces():
    assert memory.PREFILL_ROWS == runner.PREFILL_ROWS
    assert memory.MEASURED_ROWS == costs.MOST_ROWS
    assert memory.DRAWN_LOGITS == sampling.PIECE


def test_ordinary_decoding_asks_for_the_rows_of_one_block():
    long = replace(place("tiny", "float32", "cpu"), config=replace(place("tiny").config, block_length=32))
    logits = 32 * long.config.vocab_size * 4
    assert logits < working_bytes(long, 1, 64) < working_bytes(long, 1, 64, 2 * 32**2)
    assert working_bytes(long, 16, 4096) < 0.1 * working_bytes(long, 16, 4096, verify_rows(32))


def test_free_memory_of_this_machine_is_a_sensible_number():
    assert 1 << 24 < available.free_bytes(torch.device("cpu")) < 1 << 50
