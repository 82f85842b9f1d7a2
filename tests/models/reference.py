"""An independent implementation of the same architecture: transformers' Qwen3, run without a cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm


class Reference:
    """Logits of a checkpoint with one `model.safetensors`, by transformers."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        raw = json.loads((folder / "config.json").read_text())
        self.theta, self.width = raw["rope_theta"], raw["head_dim"]
        config = Qwen3Config(**{k: v for k, v in raw.items() if k not in ("model_type", "torch_dtype")})
        config._attn_implementation = "sdpa"  # the eager one has its softmax in float32
        self.model: Any = Qwen3ForCausalLM(config).eval()
        self.model.to(dtype)
        self.model.load_state_dict(load_file(folder / "model.safetensors"), strict=not config.tie_word_embeddings)
        if dtype == torch.float64:
            self._widen()

    def _widen(self) -> None:
        """Transformers computes norms and rotary angles in float32 even for a float64 model; do those in float64."""

        def norm(module: Any, x: Tensor) -> Tensor:
            return module.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)

        def rotary(_: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
            steps = torch.arange(0, self.width, 2, dtype=torch.float64) / self.width
            angles = position_ids[..., None].double() * self.theta**-steps
            angles = torch.cat((angles, angles), -1)
            return angles.cos(), angles.sin()

        for module in self.model.modules():
            if isinstance(module, Qwen3RMSNorm):
                module.forward = norm.__get__(module)
        self.model.model.rotary_emb.forward = rotary

    def logits(self, ids: Tensor, positions: Tensor, bias: Tensor) -> Tensor:
        """ids and positions `[N, T]`, additive bias `[N, 1, T, T]` -> `[N, T, V]`."""
        with torch.inference_mode():
            return self.model(input_ids=ids, attention_mask=bias, position_ids=positions, use_cache=False).logits
