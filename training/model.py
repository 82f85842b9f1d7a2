"""A small SDAR language model for training: Qwen3 layers, block-diffusion attention.

Weights are named as in the public SDAR checkpoints, so that any SDAR loader reads them. Kept apart from the library's
inference code on purpose: this one has gradients, no cache, and nothing to be fast at but training.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 704
    num_hidden_layers: int = 10
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = True


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def split(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        return x.view(n, length, -1, self.head_dim).transpose(1, 2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        n, length, _ = x.shape
        q = rotate(self.q_norm(self.split(self.q_proj(x))), cos, sin)
        k = rotate(self.k_norm(self.split(self.k_proj(x))), cos, sin)
        v = self.split(self.v_proj(x))
        if mask is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:  # on a CPU the two plain products are far faster than a masked fused kernel
            groups = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            scores = (q @ k.transpose(-1, -2)) * self.head_dim**-0.5
            y = scores.masked_fill(~mask, -torch.inf).softmax(-1).to(v.dtype) @ v
        return self.o_proj(y.transpose(1, 2).reshape(n, length, -1))


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class SDAR(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.model = Body(config)
        frequencies = 1.0 / config.rope_theta ** (torch.arange(0, config.head_dim, 2).float() / config.head_dim)
        angles = torch.outer(torch.arange(config.max_position_embeddings).float(), frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, parameter in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(parameter)  # each layer starts as the identity
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02 if "embed" in name else parameter.shape[1] ** -0.5)

    def hidden(self, ids: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """ids [N, L], positions [L], mask bool [L, L] or None for causal attention. Returns [N, L, hidden]."""
        x = self.model.embed_tokens(ids)
        cos, sin = self.cos[positions], self.sin[positions]
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask)
        return self.model.norm(x)

    def head(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.model.embed_tokens.weight)

    def save(self, folder: Path, block_size: int, mask_id: int, end_id: int, pad_id: int) -> None:
        """Writes the checkpoint as the public SDAR ones are: bfloat16 weights and two configuration files."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: value.detach().to(torch.bfloat16).contiguous() for name, value in self.state_dict().items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        config = {
            "architectures": ["SDARForCausalLM"],
            "model_type": "sdar",
            **asdict(self.config),
            "hidden_act": "silu",
            "attention_bias": False,
            "block_size": block_size,
            "mask_token_id": mask_id,
            "eos_token_id": end_id,
            "bos_token_id": pad_id,
            "pad_token_id": pad_id,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "use_sliding_window": False,
            "sliding_window": None,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "rope_scaling": None,
            "max_window_layers": self.config.num_hidden_layers,
        }
        generation = {"eos_token_id": [end_id, pad_id], "pad_token_id": pad_id}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
