"""SDAR checkpoints: Qwen3's weight names, gathered into the transformer's fused tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from simsd.models.config import ModelConfig
from simsd.models.linear import Linear
from simsd.models.norm import RMSNorm
from simsd.models.transformer import Layer, SwiGLU, Transformer
from simsd.models.weights import WeightFiles

# A tied head shares the embedding. Packing it makes a second copy, worth it only while that is small.
_MAX_TIED_COPY = 256 << 20

Shapes = dict[str, tuple[int, ...]]


def build(config: ModelConfig, files: WeightFiles, dtype: torch.dtype, device: torch.device) -> Transformer:
    """Reads an SDAR checkpoint layer by layer; at no time are there two whole copies of the weights.

    Raises:
        ModelError: weights are missing, unexpected or wrongly shaped.
    """
    expected, optional = weight_shapes(config)
    files.check(expected, optional)

    def read(*names: str) -> Tensor:
        return files.read(names, dtype, device)

    def linear(*names: str) -> Linear:
        bias = read(*(f"{name}.bias" for name in names)) if f"{names[0]}.bias" in expected else None
        return Linear(read(*(f"{name}.weight" for name in names)), bias)

    def norm(name: str) -> RMSNorm:
        return RMSNorm(read(f"{name}.weight"), config.rms_norm_eps)

    def layer(index: int) -> Layer:
        p = f"model.layers.{index}."
        a = p + "self_attn."
        heads = {"q_norm": config.num_attention_heads, "k_norm": config.num_key_value_heads}
        head_norms = [read(f"{a}{name}.weight").expand(count, -1) for name, count in heads.items()]
        return Layer(
            input_norm=norm(p + "input_layernorm"),
            qkv=linear(a + "q_proj", a + "k_proj", a + "v_proj"),
            qk_norm=RMSNorm(torch.cat(head_norms), config.rms_norm_eps),
            output=linear(a + "o_proj"),
            post_norm=norm(p + "post_attention_layernorm"),
            mlp=SwiGLU(linear(p + "mlp.gate_proj", p + "mlp.up_proj"), linear(p + "mlp.down_proj")),
        )

    layers = [layer(index) for index in range(config.num_hidden_layers)]
    embedding = read("model.embed_tokens.weight")
    if config.tie_word_embeddings:
        head = Linear(embedding, pack=embedding.nbytes <= _MAX_TIED_COPY)
    else:
        head = Linear(read("lm_head.weight"))
    return Transformer(config, embedding, layers, norm("model.norm"), head)


def weight_shapes(config: ModelConfig) -> tuple[Shapes, Shapes]:
    """The weights the checkpoint must hold and those it may hold: a tied head may be stored all the same."""
    c = config
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    head: Shapes = {"lm_head.weight": (c.vocab_size, c.hidden_size)}
    shapes: Shapes = {"model.embed_tokens.weight": (c.vocab_size, c.hidden_size), "model.norm.weight": (c.hidden_size,)}
    for index in range(c.num_hidden_layers):
        p = f"model.layers.{index}."
        a = p + "self_attn."
        projections = {
            a + "q_proj": (q, c.hidden_size),
            a + "k_proj": (kv, c.hidden_size),
            a + "v_proj": (kv, c.hidden_size),
            a + "o_proj": (c.hidden_size, q),
        }
        shapes |= {f"{name}.weight": shape for name, shape in projections.items()}
        if c.attention_bias:
            shapes |= {f"{name}.bias": (shape[0],) for name, shape in projections.items()}
        shapes |= {
            a + "q_norm.weight": (c.head_dim,),
            a + "k_norm.weight": (c.head_dim,),
            p + "input_layernorm.weight": (c.hidden_size,),
            p + "post_attention_layernorm.weight": (c.hidden_size,),
            p + "mlp.gate_proj.weight": (c.intermediate_size, c.hidden_size),
            p + "mlp.up_proj.weight": (c.intermediate_size, c.hidden_size),
            p + "mlp.down_proj.weight": (c.hidden_size, c.intermediate_size),
        }
    return (shapes, head) if c.tie_word_embeddings else (shapes | head, {})
