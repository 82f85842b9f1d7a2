"""How much memory a model takes, told from its configuration alone; no weights are read."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from simsd.models import registry
from simsd.models.attention import MOST_SCORES
from simsd.models.config import ModelConfig
from simsd.models.linear import own_kernels, packing
from simsd.models.loader import pick_device, pick_dtype, rank_devices, read_config, resolve
from simsd.models.moe import router_dtype
from simsd.models.parts import Shapes
from simsd.models.shard import Shard, check_split, count

GIB = 1 << 30
PREFILL_ROWS = 512  # as many query tokens at once, `engine.runner` says
MEASURED_ROWS = 256  # the most that `engine.costs` times
DRAWN_LOGITS = 1 << 19  # at once on a CPU, `core.sampling` says
SCORED_ROWS = 64  # of one head that a thread takes at once, `native/kernels/layer.h` says
LEAST_TOKENS = 256  # of one sequence, without which nothing can be decoded


@dataclass(frozen=True)
class Placed:
    """A model as it would be loaded: what decides how many bytes a number of it takes.

    devices: of each rank that it is split among; one without tensor parallelism.
    """

    name: str
    config: ModelConfig
    dtype: torch.dtype
    devices: tuple[torch.device, ...]
    int8: bool = False

    @property
    def device(self) -> torch.device:
        """Where rank 0 runs, which has the most of whatever is split."""
        return self.devices[0]

    @property
    def shard(self) -> Shard:
        """Rank 0's part."""
        return Shard(0, len(self.devices))

    @property
    def weight_bytes(self) -> int:
        """Of one rank."""
        return sum(weight_bytes(self).values())


def place(
    model: str | Path,
    dtype: str = "auto",
    device: str | torch.device = "auto",
    mask_token_id: int | None = None,
    block_length: int | None = None,
    int8: bool = False,
    ranks: int = 1,
    *,
    here: bool = True,
) -> Placed:
    """What `loader.load` with the same arguments would load. Of a model on the hub the configuration is downloaded.

    ranks: that the model would be split among. here: False tells it for another machine, with devices that this one
        need not have. Raises: ModelError; ConfigError where it cannot be split so.
    """
    config = read_config(model, resolve(model, weights=False), mask_token_id, block_length)
    check_split(config, ranks, str(model))
    chosen = pick_device(device, here=here)
    devices = rank_devices(chosen, ranks, here=here)
    if devices == (torch.device("cuda"),):  # cuda:0, if that is the current one
        devices = (torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0),)
    width = 4 if config.torch_dtype == "float32" else 2
    stored = sum(parameters(config).values()) * width
    return Placed(str(model), config, pick_dtype(dtype, chosen, config, stored), devices, int8)


# ---------------------------------------------------------------------- weights
def parameters(config: ModelConfig) -> Mapping[str, int]:
    """Numbers a checkpoint of this shape holds, by part of the model; a tied head counts as embedding."""
    shapes, _ = registry.family(config.model_type).weight_shapes(config)
    total: Counter[str] = Counter()
    for name, shape in shapes.items():
        total[_part(name)] += math.prod(shape)
    return total


def weight_bytes(model: Placed) -> Mapping[str, int]:
    """Bytes of the loaded weights by part, with what is computed from them at loading; of one rank."""
    config, size = model.shard.config(model.config), model.dtype.itemsize
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
    heads |= {"query": heads["q"], "key": heads["k"]}
    packed = packing(model.device.type, model.dtype)
    total: Counter[str] = Counter()
    for name, shape in _own_shapes(model.config, model.shard).items():
        part, numbers = _part(name), math.prod(shape)
        if part == "router":
            wide = router_dtype(model.dtype)
            filled = packing(model.device.type, wide) if name.endswith(".weight") else None
            total[part] += (numbers if filled is None else filled.numbers(*shape)) * wide.itemsize
        elif part == "norms":  # a second time in float32; those of heads once a head
            copies = heads.get(name.split(".")[-2].split("_")[0], 1)
            total[part] += numbers * copies * (size + max(size, 4))
        elif model.int8 and part in _QUANTISED and len(shape) == 2:
            total[part] += numbers + shape[0] * _SCALE
        elif packed is not None and (stacked := _packed_together(name, experts=packed.own is not None)):
            total[part] += packed.numbers(stacked * shape[0], shape[1]) // stacked * size
        else:
            total[part] += numbers * size
    if config.tie_word_embeddings and packed is not None:
        total["head"] += packed.numbers(count(model.shard.span(config.vocab_size)), config.hidden_size) * size
    total["rotary table"] = config.max_position_embeddings * 2 * config.head_dim * size
    return total


def _own_shapes(config: ModelConfig, shard: Shard) -> Shapes:
    """The weights that a rank reads, in its own sizes."""
    shapes, _ = registry.family(config.model_type).weight_shapes(shard.config(config))
    own: Shapes = {}
    for name, shape in shapes.items():
        expert, split = _EXPERT.search(name), 1 if "down_proj" in name else 0
        if expert is not None:
            assert config.moe is not None
            if int(expert[1]) in range(config.moe.num_experts)[shard.span(config.moe.num_experts)]:
                own[name] = shape
        elif _part(name) in ("embedding", "head", "mlp", "experts"):
            own[name] = tuple(count(shard.span(n)) if at == split else n for at, n in enumerate(shape))
        else:
            own[name] = shape
    return own


_EXPERT = re.compile(r"\.experts\.(\d+)\.")  # the number of one that is not shared
_QUANTISED = ("attention", "mlp", "experts")
_SCALE = 8  # bytes a channel: a float32 scale, and as much that oneDNN keeps


def _packed_together(name: str, *, experts: bool) -> int:
    """How many layers like this one are packed as one, and filled up; 0 where it is not packed, or one of several whose
    sizes differ, where the filling is small beside them."""
    if not name.endswith(".weight") or (".experts." in name and not experts):
        return 0
    if "gate_proj" in name or "up_proj" in name:
        return 2
    return int(any(word in name for word in ("o_proj", "dense.", "down_proj", "lm_head")))


def _part(name: str) -> str:
    """The part of the model that a weight of this name belongs to."""
    if "norm" in name:
        return "norms"
    for part, words in _WORDS.items():
        if any(word in name for word in words):
            return part
    return "attention"


_WORDS = {
    "embedding": ("embed_tokens", "word_embeddings"),
    "head": ("lm_head",),
    "router": (".mlp.gate.",),
    "experts": ("experts.",),
    "mlp": (".mlp.",),
}


def largest_bytes(model: Placed) -> int:
    """The layer that stands twice for a moment while it is packed or rounded to int8; 0 where none is. Of one rank."""
    if not (model.int8 or packing(model.device.type, model.dtype)):
        return 0
    sizes = [0]
    for name, shape in _own_shapes(model.config, model.shard).items():
        if _part(name) in ("attention", "mlp", "head"):
            sizes.append(math.prod(shape) * (2 if "up_proj" in name else 1))  # gate and up are one layer
    return max(sizes) * model.dtype.itemsize


# ---------------------------------------------------------------------- what grows with the text
def cache_bytes(model: Placed, sequences: int, tokens: int) -> int:
    """Keys and values of so many sequences with so many tokens each; of one rank."""
    c = model.shard.config(model.config)
    return c.num_hidden_layers * 2 * sequences * c.num_key_value_heads * tokens * c.head_dim * model.dtype.itemsize


def verify_rows(block_length: int) -> int:
    """Query tokens of a sequence in a round that drafts far: of two blocks, a copy for every step."""
    return max(64, min(2 * block_length**2, 4096))


def working_bytes(model: Placed, sequences: int, tokens: int, rows: int | None = None) -> int:
    """What a forward takes besides weights and cache, at its largest: a prefill of one sequence, or a verification of
    all of them. Drawing tokens at a temperature is counted in, on a CPU of a few rows at a time. Of all ranks on the
    device.

    rows: query tokens of each sequence, such as `verify_rows`; None: one block, which ordinary decoding asks for.
    """
    block = model.config.block_length or 1
    verify = sequences * min(block if rows is None else rows, tokens)
    logits = verify * model.config.vocab_size
    drawn = min(logits, max(DRAWN_LOGITS, model.config.vocab_size)) if model.device.type == "cpu" else logits
    held, made = _logit_bytes(model)
    layers = max(_layer_bytes(model, queries, tokens) for queries in (min(PREFILL_ROWS, tokens), verify))
    return max(layers * model.devices.count(model.device), logits * held + max(logits * made, drawn * _DRAWING))


def measuring_bytes(model: Placed, tokens: int) -> int:
    """The logits of the largest forward that is timed to find out how far drafting pays."""
    return min(MEASURED_ROWS, tokens) * model.config.vocab_size * sum(_logit_bytes(model))


def _logit_bytes(model: Placed) -> tuple[int, int]:
    """Of one logit, and of what it is made from: a shorter number, the ranks' shares that rank 0 gathers."""
    copies, size = 1 if len(model.devices) == 1 else 2, model.dtype.itemsize
    return max(size, 4), (copies if size < 4 else copies - 1) * size


_DRAWING = 36  # bytes a logit: itself, the keyed noise as it is made, and what is sorted out of both


def _layer_bytes(model: Placed, queries: int, tokens: int) -> int:
    """The mask, and the widest of a layer's intermediate results, for so many query tokens."""
    c, size = model.shard.config(model.config), model.dtype.itemsize
    if not model.int8 and own_kernels(model.device.type, model.dtype) is not None:
        return _native_layer_bytes(model, queries, tokens)
    mask = queries * tokens * (1 + size * (1 + (c.groups if c.groups > 1 else 0)))
    # in bfloat16 on a CPU scores and weights are held, in float32 too; elsewhere the fused kernel holds neither
    rounded = model.device.type == "cpu" and model.dtype == torch.bfloat16
    attention = min(queries * tokens * c.num_attention_heads, MOST_SCORES) * 12 if rounded else 0
    inner = count(model.shard.span(c.intermediate_size))
    if c.moe is not None:
        inner = max(inner, c.moe.num_experts_per_tok * (c.moe.moe_intermediate_size + c.hidden_size))
    return mask + max(attention, queries * 4 * (inner + c.hidden_size) * size)


def _native_layer_bytes(model: Placed, queries: int, tokens: int) -> int:
    """The same, where our own kernels hold the results of both halves, and each thread the scores of a few rows."""
    c, size = model.shard.config(model.config), model.dtype.itemsize
    inner, heads = count(model.shard.span(c.intermediate_size)), c.num_attention_heads * c.head_dim
    qkv = heads + 2 * c.num_key_value_heads * c.head_dim
    scores = torch.get_num_threads() * min(SCORED_ROWS, queries * c.groups) * tokens * 4
    row = size * (3 * c.hidden_size + qkv + heads + 3 * inner) + 4 * (heads + max(heads, inner, c.hidden_size))
    if c.moe is not None:
        row += 4 * size * c.moe.num_experts_per_tok * (c.moe.moe_intermediate_size + c.hidden_size)
    return queries * (tokens * (1 + size) + row) + scores
