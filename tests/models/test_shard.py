"""All ranks' parts together are the whole: spans, weights as they are read, and what a split model computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from simsd.errors import ConfigError
from simsd.models.config import ModelConfig
from simsd.models.loader import Checkpoint, load, look_at
from simsd.models.parts import Parts
from simsd.models.registry import family
from simsd.models.shard import Shard, check_split, count
from simsd.models.transformer import Transformer
from simsd.models.weights import Piece, WeightFiles
from tests.models.checkpoints import LLADA2, MOE, random_checkpoint, random_config
from tests.models.ranks import Team

CPU = torch.device("cpu")
# Name -> ranks and sizes. Vocabulary, inner dimensions and experts are not multiples of the ranks everywhere.
SPLITS: dict[str, tuple[int, dict[str, Any]]] = {
    "dense": (2, {}),
    "dense, tied": (2, {"tie_word_embeddings": True}),
    "dense, tied and uneven": (4, {"tie_word_embeddings": True, "vocab_size": 271, "intermediate_size": 81}),
    "dense, ranks share key/value heads": (4, {"vocab_size": 274}),
    "dense, one key/value head": (2, {"num_key_value_heads": 1}),
    "dense, biases": (2, {"attention_bias": True}),
    "experts": (2, MOE),
    "experts, uneven": (4, MOE | {"num_experts": 10}),
    "llada2": (2, LLADA2),
    "llada2, uneven": (4, LLADA2 | {"moe_intermediate_size": 22, "num_shared_experts": 1}),
}


def logits(model: Transformer) -> Tensor:
    """Of ten rows in two forwards."""
    ids = torch.arange(3, 13)[None] * 21 % 250
    order = torch.arange(10)[None]
    cache = model.make_cache(1, 16)
    model.forward(ids[:, :6], order[:, :6], None, cache, 0, 6)
    return model.head(model.forward(ids[:, 6:], order[:, 6:], None, cache, 6, 10))[0]


@pytest.mark.parametrize("name", list(SPLITS))
def test_a_split_model_computes_what_the_whole_one_does(tmp_path: Path, name: str):
    size, sizes = SPLITS[name]
    folder = random_checkpoint(tmp_path, **sizes)
    checkpoint, _ = look_at(folder, "float64", CPU)
    check_split(checkpoint.config, size, name)
    with torch.inference_mode():
        expected = logits(load(folder, "float64", "cpu").model)
    found = Team(size).run(lambda shard: logits(checkpoint.build(CPU, shard)))[0]
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["dense, biases", "experts, uneven", "llada2, uneven"])
def test_int8_weights_of_the_parts_are_no_further_from_the_model_than_those_of_the_whole(tmp_path: Path, name: str):
    size, sizes = SPLITS[name]
    folder = random_checkpoint(tmp_path, **sizes)
    checkpoint, _ = look_at(folder, "float64", CPU, int8=True)
    with torch.inference_mode():
        plain = logits(load(folder, "float64", "cpu").model)
        whole = logits(load(folder, "float64", "cpu", int8=True).model)
    split = Team(size).run(lambda shard: logits(checkpoint.build(CPU, shard)))[0]
    off, off_whole = ((found - plain).norm() / plain.norm() for found in (split, whole))
    assert 0 < off < 1.3 * off_whole
    assert not torch.equal(split, whole)  # each part has scales of its own


class Counted(WeightFiles):
    """Weight files that remember what was read of them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.read_of: dict[str, list[int]] = {}

    def stored(self, piece: Piece) -> Tensor:
        found = super().stored(piece)
        self.read_of.setdefault(piece.name, []).append(found.numel())
        return found


@pytest.mark.parametrize("name", ["dense", "dense, biases", "experts", "llada2"])
def test_a_rank_reads_its_own_part_of_the_weights_alone(tmp_path: Path, name: str):
    size, sizes = SPLITS[name]
    folder = random_checkpoint(tmp_path, **sizes)
    checkpoint, _ = look_at(folder, "float32", CPU)
    files = [Counted(folder) for _ in range(size)]
    for rank, counted in enumerate(files):
        config = checkpoint.config
        parts = Parts(counted, torch.float32, CPU, config.rms_norm_eps, Shard(rank, size))
        family(config.model_type).build(config, parts)
    once = 0
    for weight, shape in files[0].shapes.items():
        read = [sum(counted.read_of.get(weight, [])) for counted in files]
        whole = torch.Size(shape).numel()
        if any(part in weight for part in ("norm", ".gate.", "dense.bias", "o_proj.bias")):
            assert set(read) <= {0, whole}, weight  # small: every rank needs it whole, or one alone
        else:
            assert sum(read) == whole, weight  # each number by one rank alone
            once += whole
            if ".experts." not in weight:
                assert max(read) < whole, weight
    assert once > 0.95 * sum(torch.Size(shape).numel() for shape in files[0].shapes.values())


@pytest.mark.parametrize("total", [2, 7, 16, 151936])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_spans_lie_side_by_side(total: int, size: int):
    spans = [Shard(rank, size).span(total) for rank in range(size)]
    assert [n for span in spans for n in range(total)[span]] == list(range(total))
    assert max(map(count, spans)) - min(map(count, spans)) <= 1


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(8, 4, 2), (8, 4, 4), (8, 4, 8), (8, 2, 8), (6, 3, 6), (6, 1, 3)]
)
def test_query_heads_find_their_key_value_heads(heads: int, kv_heads: int, size: int):
    config = ModelConfig.from_dict(random_config(num_attention_heads=heads, num_key_value_heads=kv_heads))
    check_split(config, size, "m")
    for rank in range(size):
        shard = Shard(rank, size)
        own, local = shard.kv_heads(config), shard.config(config)
        for place, head in enumerate(range(heads)[shard.heads(config)]):
            assert range(kv_heads)[own][place // local.groups] == head // config.groups
        assert (local.num_attention_heads, local.num_key_value_heads) == (heads // size, count(own))


def test_what_cannot_be_split_is_refused_with_what_can():
    config = ModelConfig.from_dict(random_config(num_attention_heads=12, num_key_value_heads=4))
    with pytest.raises(
        ConfigError, match=r"is 3, but the 12 attention heads and 4 key/value heads of m.* 1, 2, 4, 12$"
    ):
        check_split(config, 3, "m")
    with pytest.raises(ConfigError, match="tensor_parallel_size is 5"):
        check_split(config, 5, "m")
    few = ModelConfig.from_dict(random_config(**MOE | {"num_experts": 3}))
    with pytest.raises(ConfigError, match="has parts of only 3; choose 3 at most"):
        check_split(few, 4, "m")


def test_a_checkpoint_of_one_rank_is_the_whole(tmp_path: Path):
    folder = random_checkpoint(tmp_path)
    checkpoint, tokenizer = look_at(folder, "float64", CPU)
    assert isinstance(checkpoint, Checkpoint)
    assert tokenizer.fingerprint == load(folder, "float64", "cpu").tokenizer.fingerprint
    with torch.inference_mode():
        assert torch.equal(logits(checkpoint.build(CPU)), logits(load(folder, "float64", "cpu").model))
