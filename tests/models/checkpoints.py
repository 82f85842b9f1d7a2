"""Small random checkpoints in the public formats, with a byte-level tokenizer, for any test that needs one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor

from simsd.models.config import ModelConfig
from simsd.models.registry import family

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>")  # ids 256 .. 259, after the bytes
MASK_ID = 259
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


MOE: dict[str, Any] = {
    "model_type": "sdar_moe",
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
LLADA2: dict[str, Any] = {
    "model_type": "llada2_moe",
    "num_experts": 16,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "score_function": "sigmoid",
    "partial_rotary_factor": 0.5,
    "attention_bias": None,
}


def random_config(**overrides: Any) -> dict[str, Any]:
    """A config.json of a tiny model; a key set to None is left out."""
    values: dict[str, Any] = {
        "model_type": "sdar",
        "vocab_size": 272,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "attention_bias": False,
        "block_size": 4,
        "mask_token_id": MASK_ID,
        "eos_token_id": 258,
        "torch_dtype": "float32",
    }
    return {key: value for key, value in (values | overrides).items() if value is not None}


def random_weights(config: dict[str, Any], *, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Weights of a size at which every part of the model matters; norms are not all ones."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in family(config["model_type"]).weight_shapes(ModelConfig.from_dict(config))[0].items():
        draw = torch.randn(shape, generator=generator)
        if name.endswith("expert_bias"):
            draw = 0.3 * draw * shape[-1] ** 0.5  # large enough to change what is chosen
        weights[name] = ((1 + 0.2 * draw) if "norm" in name else draw * shape[-1] ** -0.5).to(dtype)
    return weights


def byte_tokenizer() -> tokenizers.Tokenizer:
    """One token a byte, and the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def random_checkpoint(
    folder: Path, *, seed: int = 0, shards: int = 1, dtype: torch.dtype = torch.float32, **config: Any
) -> Path:
    """Writes a whole checkpoint folder and returns it; keyword arguments go into config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    values = random_config(**config)
    write_json(folder / "config.json", values)
    write_json(folder / "generation_config.json", {"eos_token_id": [258, 256]})
    write_json(folder / "tokenizer_config.json", {"eos_token": SPECIAL[2], "chat_template": TEMPLATE})
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    save_weights(folder, random_weights(values, seed=seed, dtype=dtype), shards)
    return folder


def save_weights(folder: Path, weights: dict[str, Tensor], shards: int = 1) -> None:
    """Weights as `model.safetensors`, or as numbered shards with an index."""
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return
    names = list(weights)
    index = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[shard::shards]
        save_file({name: weights[name] for name in part}, folder / file)
        index |= dict.fromkeys(part, file)
    write_json(folder / "model.safetensors.index.json", {"weight_map": index})


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
