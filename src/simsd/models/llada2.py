"""LLaDA2.x checkpoints (`llada2_moe`): experts under a sigmoid router, one fused attention projection, and rotary
positions on a part of each head.

Attention is SDAR's: block-causal on the absolute grid, and logits at a masked position predict its own token. What
LLaDA2.1 adds at decoding time, replacing tokens that are already revealed, is not done: a known token stays.
"""

from __future__ import annotations

import torch
from torch import Tensor

from simsd.models.config import ModelConfig
from simsd.models.layer import Layer
from simsd.models.linear import Linear
from simsd.models.parts import Parts, Shapes, mlp_shapes, with_head
from simsd.models.quantized import Int8Linear
from simsd.models.shard import count, scaled
from simsd.models.transformer import Transformer
from simsd.models.weights import Piece


def build(config: ModelConfig, parts: Parts) -> Transformer:
    """Reads an LLaDA2 checkpoint layer by layer.

    Raises:
        ModelError: weights are missing, unexpected or wrongly shaped.
    """
    parts.files.check(*weight_shapes(config))
    shard = parts.shard
    size, heads, kv_heads = config.head_dim, config.num_attention_heads, config.num_key_value_heads
    own, own_kv = shard.heads(config), shard.kv_heads(config)
    # queries, keys and values lie in one stored weight, one behind the other
    begins = {0: own, heads: own_kv, heads + kv_heads: own_kv}
    qkv_rows = [scaled(slice(at + span.start, at + span.stop), size) for at, span in begins.items()]
    order = rotary_order(config.head_dim, config.rotary_dim).to(parts.device)

    def spread(weight: Tensor) -> Tensor:
        """The dimensions of every query and key head in `order`; values stay as they are."""
        by_head = weight.unflatten(0, (-1, size))
        both = count(own) + count(own_kv)
        return torch.cat((by_head[:both, order], by_head[both:])).flatten(0, 1)

    def qkv(name: str) -> Linear | Int8Linear:
        weight, bias = ([Piece(f"{name}.{kind}", rows) for rows in qkv_rows] for kind in ("weight", "bias"))
        stored = f"{name}.bias" in parts.files.shapes
        return parts.layer(spread(parts.tensor(*weight)), spread(parts.tensor(*bias)) if stored else None)

    def layer(index: int) -> Layer:
        p = f"model.layers.{index}."
        a = p + "attention."
        counts = {"query_layernorm": count(own), "key_layernorm": count(own_kv)}
        head_norms = [parts.tensor(f"{a}{name}.weight")[order].expand(number, -1) for name, number in counts.items()]
        output = parts.linear(Piece(a + "dense", columns=scaled(own, size)))
        return Layer(
            attention=parts.attention(config, p + "input_layernorm", qkv(a + "query_key_value"), head_norms, output),
            mlp=parts.mlp(p + "mlp", p + "post_attention_layernorm", config, index),
        )

    layers = [layer(index) for index in range(config.num_hidden_layers)]
    embedding = parts.embedding("model.word_embeddings")
    head = parts.head(embedding, config.vocab_size, tied=config.tie_word_embeddings)
    return Transformer(shard.config(config), embedding, layers, parts.norm("model.norm"), head)


def rotary_order(head_dim: int, rotary_dim: int) -> Tensor:
    """A head's dimensions `[head_dim]`, put so that the transformer's rotation pairs what this model pairs.

    Here dimension i of the first `rotary_dim` turns with i + rotary_dim/2; the transformer turns i with i + head_dim/2.
    Queries and keys in the same new order have the same products, so weights are reordered once, at loading.
    """
    index = torch.arange(head_dim)
    turning, still = index[:rotary_dim].chunk(2), index[rotary_dim:].chunk(2)
    return torch.cat([part for pair in zip(turning, still, strict=True) for part in pair])


def weight_shapes(config: ModelConfig) -> tuple[Shapes, Shapes]:
    """The weights the checkpoint must hold, and those it may hold: biases, if it was trained with them."""
    c = config
    q, qkv = c.num_attention_heads * c.head_dim, (c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim
    shapes: Shapes = {
        "model.word_embeddings.weight": (c.vocab_size, c.hidden_size),
        "model.norm.weight": (c.hidden_size,),
    }
    optional: Shapes = {}
    for index in range(c.num_hidden_layers):
        p = f"model.layers.{index}."
        a = p + "attention."
        shapes |= {
            a + "query_key_value.weight": (qkv, c.hidden_size),
            a + "query_layernorm.weight": (c.head_dim,),
            a + "key_layernorm.weight": (c.head_dim,),
            a + "dense.weight": (c.hidden_size, q),
            p + "input_layernorm.weight": (c.hidden_size,),
            p + "post_attention_layernorm.weight": (c.hidden_size,),
        }
        shapes |= mlp_shapes(p + "mlp", c, index)
        optional |= {a + "query_key_value.bias": (qkv,), a + "dense.bias": (c.hidden_size,)}
    required, head = with_head(shapes, c)
    return required, optional | head
