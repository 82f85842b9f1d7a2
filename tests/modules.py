"""Small random `transformers` modules with clear preferences, in float64, and their logits without a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

VOCAB, MASK = 64, 63
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def qwen3(seed: int = 0, noise: float = 0.0, **config: Any) -> Any:
    return filled(Qwen3ForCausalLM(Qwen3Config(**SIZES | config)), seed, noise)


def llama(seed: int = 0, noise: float = 0.0, **config: Any) -> Any:
    return filled(LlamaForCausalLM(LlamaConfig(**SIZES | config)), seed, noise)


def filled(module: Any, seed: int = 0, noise: float = 0.0) -> Any:
    """The module with random weights, in evaluation mode; with `noise` it is the same module a little off."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in module.named_parameters():
        if weight.dim() > 1:
            scale = 3.0 if "lm_head" in name else 1.0
            weight.data = scale * torch.randn(weight.shape, generator=generator) * weight.shape[-1] ** -0.5
    for weight in module.parameters():
        weight.data += noise * weight.data.std() * torch.randn(weight.shape, generator=generator)
    return module.eval().double()


def whole_logits(module: Any, text: list[int], size: int, *, shifted: bool = False) -> Tensor:
    """`[T, V]` of a text in blocks of `size`, in one forward; shifted: each row has the logits of the row before."""
    at = torch.arange(len(text))
    later = at[:, None] // size < at // size
    bias = torch.zeros(later.shape, dtype=module.dtype).masked_fill(later, -torch.inf)
    with torch.inference_mode():
        given = {"input_ids": torch.tensor([text]), "position_ids": at[None], "attention_mask": bias[None, None]}
        logits = module(**given, use_cache=False).logits[0]
    return torch.cat((logits[:1], logits[:-1])) if shifted else logits
