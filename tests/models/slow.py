"""The models as their descriptions say them: one row, head and expert at a time, in float64, with no shared code."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor


class Slow:
    """Logits of a checkpoint folder with one `model.safetensors`, dense or with experts."""

    def __init__(self, folder: Path) -> None:
        self.c: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.w = {name: weight.double() for name, weight in load_file(folder / "model.safetensors").items()}
        self.llada = self.c["model_type"] == "llada2_moe"

    def logits(self, ids: list[int], positions: list[int], visible: Tensor) -> Tensor:
        """visible `[T, T]` bool, row sees column -> `[T, V]`."""
        embedding = self.w["model.word_embeddings.weight" if self.llada else "model.embed_tokens.weight"]
        rows = [embedding[token] for token in ids]
        for layer in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            normed = [self.norm(row, p + "input_layernorm") for row in rows]
            mixed = self.attention(p, normed, positions, visible)
            rows = [row + more for row, more in zip(rows, mixed, strict=True)]
            normed = [self.norm(row, p + "post_attention_layernorm") for row in rows]
            rows = [row + self.mlp(layer, p + "mlp", x) for row, x in zip(rows, normed, strict=True)]
        head = self.w["lm_head.weight"]
        return torch.stack([head @ self.norm(row, "model.norm") for row in rows])

    def norm(self, x: Tensor, name: str) -> Tensor:
        return self.w[name + ".weight"] * x / torch.sqrt((x * x).mean() + self.c["rms_norm_eps"])

    def attention(self, p: str, rows: list[Tensor], positions: list[int], visible: Tensor) -> list[Tensor]:
        heads, kv_heads, size = (self.c[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        if self.llada:
            names = ("query_layernorm", "key_layernorm")
            a, output = p + "attention.", "dense"
            fused = self.w[a + "query_key_value.weight"]
            parts = fused.split([heads * size, kv_heads * size, kv_heads * size])
        else:
            names = ("q_norm", "k_norm")
            a, output = p + "self_attn.", "o_proj"
            parts = [self.w[f"{a}{name}_proj.weight"] for name in "qkv"]
        q, k, v = ([(weight @ row).view(-1, size) for row in rows] for weight in parts)
        q = [
            [self.turn(self.norm(head, a + names[0]), at) for head in row] for row, at in zip(q, positions, strict=True)
        ]
        k = [
            [self.turn(self.norm(head, a + names[1]), at) for head in row] for row, at in zip(k, positions, strict=True)
        ]
        results = []
        for i in range(len(rows)):
            seen = visible[i].nonzero().flatten().tolist()
            joined = []
            for head in range(heads):
                kv = head // (heads // kv_heads)
                scores = torch.stack([q[i][head] @ k[j][kv] / math.sqrt(size) for j in seen])
                joined.append(sum(part * v[j][kv] for part, j in zip(scores.softmax(0), seen, strict=True)))
            result = self.w[f"{a}{output}.weight"] @ torch.cat(joined)
            results.append(result + self.w.get(f"{a}{output}.bias", torch.zeros(())))
        return results

    def turn(self, x: Tensor, position: int) -> Tensor:
        """Dimension i of the rotated part turns with the one half that part further on."""
        turning = int(len(x) * self.c.get("partial_rotary_factor", 1.0))
        y = x.clone()
        for i in range(turning // 2):
            angle = position * self.c["rope_theta"] ** (-2 * i / turning)
            a, b = x[i], x[i + turning // 2]
            y[i] = a * math.cos(angle) - b * math.sin(angle)
            y[i + turning // 2] = b * math.cos(angle) + a * math.sin(angle)
        return y

    def swiglu(self, name: str, x: Tensor) -> Tensor:
        gate, up = (self.w[f"{name}.{part}_proj.weight"] @ x for part in ("gate", "up"))
        return self.w[f"{name}.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)

    def mlp(self, layer: int, name: str, x: Tensor) -> Tensor:
        c = self.c
        if not c.get("num_experts"):
            return self.swiglu(name, x)
        if layer < c.get("first_k_dense_replace", 0) or layer in c.get("mlp_only_layers", []):
            return self.swiglu(name, x)
        if (layer + 1) % c.get("decoder_sparse_step", 1):
            return self.swiglu(name, x)
        logits = (self.w[name + ".gate.weight"] @ x).tolist()
        weights = self.llada_experts(name, logits) if self.llada else self.sdar_experts(logits)
        y = sum(weight * self.swiglu(f"{name}.experts.{e}", x) for e, weight in weights.items())
        assert isinstance(y, Tensor)
        return y + self.swiglu(name + ".shared_experts", x) if c.get("num_shared_experts") else y

    def sdar_experts(self, logits: list[float]) -> dict[int, float]:
        """Softmax over all experts, the largest k, made to sum to one where the configuration says so."""
        whole = sum(math.exp(x) for x in logits)
        law = {e: math.exp(x) / whole for e, x in enumerate(logits)}
        best = sorted(law, key=lambda e: -law[e])[: self.c["num_experts_per_tok"]]
        total = sum(law[e] for e in best) if self.c["norm_topk_prob"] else 1.0
        return {e: law[e] / total for e in best}

    def llada_experts(self, name: str, logits: list[float]) -> dict[int, float]:
        """Sigmoids; the bias and the groups decide who is chosen, the sigmoids alone how much each counts."""
        c = self.c
        score = [1 / (1 + math.exp(-x)) for x in logits]
        wanted = [s + b for s, b in zip(score, self.w[name + ".gate.expert_bias"].tolist(), strict=True)]
        size = len(wanted) // c["n_group"]
        groups = [list(range(g * size, (g + 1) * size)) for g in range(c["n_group"])]
        groups.sort(key=lambda group: -sum(sorted((wanted[e] for e in group), reverse=True)[:2]))
        allowed = [e for group in groups[: c["topk_group"]] for e in group]
        best = sorted(allowed, key=lambda e: -wanted[e])[: c["num_experts_per_tok"]]
        total = sum(score[e] for e in best) if len(best) > 1 and c["norm_topk_prob"] else 1.0
        return {e: score[e] / total * c["routed_scaling_factor"] for e in best}
