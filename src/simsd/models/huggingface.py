"""Any `transformers` causal language model as target or draft: the module's own layers over the library's cache.

What is asked of the module: it takes a 4-D additive `attention_mask`, `position_ids` and a cache, and keeps keys and
values of full attention in every layer. That is measured when it is wrapped (`probe.py`), not believed.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import transformers
from torch import Tensor

from simsd.errors import ModelError
from simsd.models import registry
from simsd.models.cache import KVCache
from simsd.models.config import ModelConfig, refuse_windows
from simsd.models.loader import LoadedModel
from simsd.models.probe import check
from simsd.models.protocol import Model
from simsd.models.shifted import Shifted
from simsd.models.tokenizer import IdTokenizer, Tokenizer

_CACHE_NAMES = ("cache", "past_key_values")  # newer and older versions of transformers


class SlotCache(transformers.Cache):
    """One forward's view on a `KVCache`, in the shape that the module's layers call: write the rows, see the rest."""

    def __init__(self, cache: KVCache, slots: int | Tensor, length: int, rows: int) -> None:
        self.layers = []  # what the base class would hold; everything is in `cache`
        self.cache = cache
        self.slots = slots
        self.length = length
        self.rows = rows

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of the rows `[N, kv_heads, R, D]` -> those of all slots that are attended to."""
        self.cache.write(layer_idx, key_states, value_states, self.slots)
        return self.cache.read(layer_idx, self.length)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length - self.rows

    def get_mask_sizes(self, query_length: Any, layer_idx: int) -> tuple[int, int]:
        return self.length, 0


class HuggingFaceModel:
    """A loaded module as a `Model`: one forward of its body, and its head on the rows that are asked for."""

    def __init__(self, module: torch.nn.Module) -> None:
        """Raises: ModelError for a module of another kind; `wrap` also measures whether it can be run."""
        if not isinstance(module, transformers.PreTrainedModel):
            raise ModelError(f"{type(module).__name__} is not a transformers model; give one, or a checkpoint folder.")
        head = module.get_output_embeddings()
        if head is None or module.base_model is module:
            raise ModelError(f"{type(module).__name__} has no language-model head; load it as a causal LM.")
        if module.training:
            raise ModelError(f"{type(module).__name__} is in training mode; call eval() on it first.")
        devices = {parameter.device for parameter in module.parameters()}
        if len(devices) > 1:
            raise ModelError(f"{type(module).__name__} lies on {len(devices)} devices; put it on one.")
        self.module = module
        self.body: Any = module.base_model
        self.text: Any = module.config.get_text_config()
        self._head: Any = head
        names = inspect.signature(self.body.forward).parameters
        self._cache_name = next((name for name in _CACHE_NAMES if name in names), "")
        if not {"attention_mask", "position_ids", self._cache_name} <= set(names):
            raise ModelError(
                f"{type(module).__name__} takes no attention_mask, position_ids and cache; it cannot be run in blocks."
            )
        self.heads: int = self.text.num_attention_heads
        self.kv_heads: int = getattr(self.text, "num_key_value_heads", None) or self.heads
        self.head_dim: int = getattr(self.text, "head_dim", None) or self.text.hidden_size // self.heads

    @property
    def dtype(self) -> torch.dtype:
        return self.module.dtype

    @property
    def device(self) -> torch.device:
        return self.module.device

    def make_cache(self, sequences: int, capacity: int) -> KVCache:
        layers = self.text.num_hidden_layers
        return KVCache(layers, sequences, self.kv_heads, capacity, self.head_dim, self.dtype, self.device)

    def forward(
        self, ids: Tensor, positions: Tensor, bias: Tensor | None, cache: KVCache, slots: int | Tensor, length: int
    ) -> Tensor:
        """As `Transformer.forward`."""
        rows = ids.shape[1]
        if bias is None:  # without a mask the module would make a causal one
            bias = torch.zeros(ids.shape[0], 1, rows, length, dtype=self.dtype, device=ids.device)
        view = SlotCache(cache, slots, length, rows)
        given = {"input_ids": ids, "position_ids": positions, "attention_mask": bias, self._cache_name: view}
        return self.body(**given, use_cache=True)[0]

    def head(self, hidden: Tensor) -> Tensor:
        """Logits, scaled or capped where the configuration says so: float32, or float64 for a float64 model."""
        logits = self._head(hidden)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        logits = logits * (getattr(self.text, "logit_scale", None) or 1.0)
        logits = logits / (getattr(self.text, "logits_scaling", None) or 1.0)
        cap = getattr(self.text, "final_logit_softcapping", None)
        return cap * torch.tanh(logits / cap) if cap else logits


def wrap(
    module: torch.nn.Module,
    tokenizer: Any = None,
    *,
    mask_token_id: int | None = None,
    block_length: int | None = None,
    shifted_logits: bool = False,
    name: str | None = None,
) -> LoadedModel[Model]:
    """A loaded `transformers` module, ready to be given to `LLM` as model or draft model.

    Args:
        module: a causal language model in evaluation mode, on one device. It is used as it is, not copied.
        tokenizer: its fast tokenizer; None if prompts and answers are token ids only.
        mask_token_id, block_length: None takes what the module's configuration or the tokenizer says.
        shifted_logits: the module's logits at a position predict the *next* token (Dream, Fast-dLLM v2).

    Raises:
        ModelError: the module cannot be run this way, or MASK id or block length are not known; a sentence says why.
    """
    label = name or getattr(module, "name_or_path", "") or type(module).__name__
    model = HuggingFaceModel(module)
    config = _config(model, tokenizer, mask_token_id, block_length)
    with torch.inference_mode():
        check(model, module, label)
    if tokenizer is None:
        text = IdTokenizer(config.vocab_size, config.mask_token_id, label)
    elif isinstance(tokenizer, Tokenizer):
        text = tokenizer
    else:
        text = Tokenizer.from_transformers(tokenizer, config.mask_token_id)
    return LoadedModel(Shifted(model, config.hidden_size) if shifted_logits else model, config, text, label)


def _config(
    model: HuggingFaceModel, tokenizer: Any, mask_token_id: int | None, block_length: int | None
) -> ModelConfig:
    """What the engine needs to know, from the module's own configuration."""
    text = model.text
    refuse_windows(getattr(text, "layer_types", None) or (), _window(text))
    known = registry.FAMILIES.get(text.model_type)
    blocks = (block_length, *(getattr(text, key, None) for key in ("block_size", "block_length", "bd_size")))
    masks = (mask_token_id, getattr(text, "mask_token_id", None), getattr(tokenizer, "mask_token_id", None))
    size = next((n for n in blocks if n is not None), known.block_length if known else None)
    mask = next((i for i in masks if i is not None), known.mask_token_id if known else None)
    for what, value in (("block_length", size), ("mask_token_id", mask)):
        if value is None:
            raise ModelError(f"the configuration of {text.model_type} does not say its {what}; pass {what}=.")
    generation = getattr(model.module, "generation_config", None)
    eos = (getattr(generation, "eos_token_id", None), getattr(text, "eos_token_id", None))
    return ModelConfig(
        model_type=text.model_type,
        vocab_size=model.module.get_input_embeddings().weight.shape[0],  # type: ignore[union-attr, index]
        hidden_size=text.hidden_size,
        intermediate_size=getattr(text, "intermediate_size", None) or text.hidden_size,
        num_hidden_layers=text.num_hidden_layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        max_position_embeddings=text.max_position_embeddings,
        block_length=size,
        mask_token_id=mask,
        stop_token_ids=tuple(dict.fromkeys(i for ids in eos if ids is not None for i in _listed(ids))),
    )


def _window(text: Any) -> int | None:
    """Tokens that each row sees, where these are fewer than a text may have. Of models with a switch for it (Qwen's)
    that decides; of others (Mistral's, Phi's) the number alone."""
    window = getattr(text, "sliding_window", None)
    active = window is not None and getattr(text, "use_sliding_window", True)
    return window if active and window < text.max_position_embeddings else None


def _listed(ids: int | list[int]) -> list[int]:
    return list(ids) if isinstance(ids, list | tuple) else [int(ids)]
