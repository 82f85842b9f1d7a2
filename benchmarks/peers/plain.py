"""Ordinary decoding in the plainest way: a loop over the layers of `transformers`, greedy, as users would write it.

A peer to measure against where an engine's own script cannot be had. Each denoising step is one forward of the block
behind a `DynamicCache`; a finished block is run once more to be stored.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from safetensors.torch import load_file
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

from simsd.models.config import ModelConfig
from simsd.models.loader import resolve


def load(
    model: str = "tiny", block_length: int = 4, threshold: float | None = None
) -> Callable[[list[int], int], list[int]]:
    """threshold: of the dynamic schedule, in which all tokens above it are revealed; None is the static one."""
    folder = resolve(model)
    config = ModelConfig.from_folder(folder)
    mask_id = config.mask_token_id
    assert mask_id is not None
    shape = Qwen3Config.from_pretrained(folder)
    shape.use_sliding_window = False
    network = Qwen3ForCausalLM(shape).eval()
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
    missing, unknown = network.load_state_dict({name: w.float() for name, w in weights.items()}, strict=False)
    if unknown or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"{model} is not of this shape: unknown {unknown}, missing {missing}")
    network.tie_weights()

    def forward(ids: torch.Tensor, begin: int, cache: DynamicCache) -> torch.Tensor:
        """Logits of whole blocks from position `begin` on; their keys and values go into the cache."""
        place = torch.arange(begin, begin + ids.shape[1])
        hidden = (place[:, None] // block_length) < (torch.arange(begin + ids.shape[1])[None] // block_length)
        bias = torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)[None, None]
        return network(ids, attention_mask=bias, position_ids=place[None], past_key_values=cache).logits

    @torch.inference_mode()
    def answer(ids: list[int], max_tokens: int) -> list[int]:
        stored = len(ids) // block_length * block_length
        text = list(ids[:stored])
        block = torch.tensor([ids[stored:] + [mask_id] * (block_length - len(ids) + stored)])
        cache = DynamicCache()
        if stored:
            forward(torch.tensor([text]), 0, cache)
        while True:
            while (masked := block == mask_id).any():
                logits = forward(block, len(text), cache)
                cache.crop(-block_length)
                logits[..., mask_id] = -torch.inf
                confidence, token = logits.softmax(-1).max(-1)
                confidence = confidence.masked_fill(~masked, -1.0)
                shown = torch.zeros_like(masked)
                shown[0, confidence[0].argmax()] = True
                if threshold is not None:
                    shown |= confidence > threshold
                block = torch.where(shown, token, block)
            forward(block, len(text), cache)
            text += block[0].tolist()
            new = text[len(ids) :]
            if len(new) >= max_tokens or any(token in config.stop_token_ids for token in new):
                return new[:max_tokens]
            block = torch.full_like(block, mask_id)

    return answer
