"""SDAR checkpoints, dense and with experts: Qwen3's weight names, gathered into the transformer's fused tensors.

`sdar` covers TraDo too, which is SDAR trained further. `sdar_moe` has Qwen3-MoE's experts: no shared one, and a router
whose softmax is over all of them.
"""

from __future__ import annotations

from simsd.models.config import ModelConfig
from simsd.models.layer import Layer
from simsd.models.parts import Parts, Shapes, mlp_shapes, with_head
from simsd.models.shard import count, scaled
from simsd.models.transformer import Transformer
from simsd.models.weights import Piece


def build(config: ModelConfig, parts: Parts) -> Transformer:
    """Reads an SDAR checkpoint layer by layer.

    Raises:
        ModelError: weights are missing, unexpected or wrongly shaped.
    """
    parts.files.check(*weight_shapes(config))
    shard = parts.shard
    own, own_kv = shard.heads(config), shard.kv_heads(config)
    q, kv = scaled(own, config.head_dim), scaled(own_kv, config.head_dim)

    def layer(index: int) -> Layer:
        p = f"model.layers.{index}."
        a = p + "self_attn."
        heads = {"q_norm": count(own), "k_norm": count(own_kv)}
        head_norms = [parts.tensor(f"{a}{name}.weight").expand(number, -1) for name, number in heads.items()]
        qkv = parts.linear(Piece(a + "q_proj", q), Piece(a + "k_proj", kv), Piece(a + "v_proj", kv))
        output = parts.linear(Piece(a + "o_proj", columns=q))
        return Layer(
            attention=parts.attention(config, p + "input_layernorm", qkv, head_norms, output),
            mlp=parts.mlp(p + "mlp", p + "post_attention_layernorm", config, index),
        )

    layers = [layer(index) for index in range(config.num_hidden_layers)]
    embedding = parts.embedding("model.embed_tokens")
    head = parts.head(embedding, config.vocab_size, tied=config.tie_word_embeddings)
    return Transformer(shard.config(config), embedding, layers, parts.norm("model.norm"), head)


def weight_shapes(config: ModelConfig) -> tuple[Shapes, Shapes]:
    """The weights the checkpoint must hold, and those it may hold."""
    c = config
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
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
        }
        shapes |= mlp_shapes(p + "mlp", c, index)
    return with_head(shapes, c)
