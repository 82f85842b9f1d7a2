"""What a checkpoint's `config.json` says about the model, checked once and read-only from then on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from simsd.errors import ModelError
from simsd.models.rope import Rope
from simsd.models.values import given, integer, integers, kind, number, optional_integer, read_json, truth

MOST_POSITIONS = 1 << 22  # the rotary table has a row for each
MOST_LAYERS = 1 << 10
MOST_EXPERTS = 1 << 17  # of all layers together: each has weights of its own names
_BLOCK_IN_NAME = re.compile(r"[-_]b(\d+)(?![a-z0-9])", re.IGNORECASE)


@dataclass(frozen=True)
class MoEConfig:
    """Sizes and routing of the layers that have experts; `moe.Router` says what the routing fields mean.

    sparse_layers: the indexes of these layers; all others have one dense MLP.
    """

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    sparse_layers: tuple[int, ...]
    norm_topk_prob: bool = True
    score_function: str = "softmax"
    n_group: int = 1
    topk_group: int = 1
    routed_scaling_factor: float = 1.0
    num_shared_experts: int = 0

    def __post_init__(self) -> None:
        for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "n_group", "topk_group"):
            if getattr(self, name) < 1:
                raise ModelError(f"config.json says {name} = {getattr(self, name)}; it must be at least 1.")
        if self.num_shared_experts < 0:
            raise ModelError(f"config.json says num_shared_experts = {self.num_shared_experts}; it must be 0 or more.")
        if self.num_experts * max(len(self.sparse_layers), 1) > MOST_EXPERTS:
            raise ModelError(
                f"config.json says num_experts = {self.num_experts} in each of {len(self.sparse_layers)} layers; "
                f"more than {MOST_EXPERTS} in all cannot be loaded."
            )
        if not self.routed_scaling_factor > 0:
            raise ModelError(
                f"config.json says routed_scaling_factor = {self.routed_scaling_factor}; it must be above 0."
            )
        if self.score_function not in ("softmax", "sigmoid"):
            raise ModelError(f"score_function {self.score_function!r} is not supported; only softmax and sigmoid are.")
        if self.num_experts % self.n_group or self.topk_group > self.n_group:
            raise ModelError(
                f"config.json wants {self.topk_group} of {self.n_group} groups of {self.num_experts} experts; "
                "the groups must be of equal size, and no more chosen than there are."
            )
        choice = self.num_experts // self.n_group * self.topk_group
        if self.num_experts_per_tok > choice:
            raise ModelError(
                f"config.json says num_experts_per_tok = {self.num_experts_per_tok}, "
                f"but only {choice} experts can be chosen from."
            )

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], num_hidden_layers: int) -> MoEConfig | None:
        """From parsed JSON; None for a model without experts."""
        if not optional_integer(raw, "num_experts"):
            return None
        step = integer(raw, "decoder_sparse_step", 1)
        if step < 1:
            raise ModelError(f"config.json says decoder_sparse_step = {step}; it must be at least 1.")
        dense, first = set(integers(raw, "mlp_only_layers")), integer(raw, "first_k_dense_replace", 0)
        sparse = [i for i in range(num_hidden_layers) if i >= first and i not in dense and (i + 1) % step == 0]
        return cls(
            num_experts=integer(raw, "num_experts"),
            num_experts_per_tok=integer(raw, "num_experts_per_tok", 1),
            moe_intermediate_size=integer(raw, "moe_intermediate_size", raw["intermediate_size"]),
            sparse_layers=tuple(sparse),
            norm_topk_prob=truth(raw, "norm_topk_prob", True),
            score_function=kind(raw, "score_function", str, "softmax"),
            n_group=integer(raw, "n_group", 1),
            topk_group=integer(raw, "topk_group", 1),
            routed_scaling_factor=number(raw, "routed_scaling_factor", 1.0),
            num_shared_experts=integer(raw, "num_shared_experts", 0),
        )


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and special ids of a block-diffusion checkpoint (method section 1).

    `block_length` and `mask_token_id` are None when the checkpoint does not state them; `registry.with_defaults`
    fills them in. `partial_rotary_factor` is the part of each head that is rotated; `moe` is None for a dense model.
    `trained_block_lengths` is only a hint: `-b8` in the checkpoint's name, else its `block_size`.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 32768
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    block_length: int | None = None
    mask_token_id: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    torch_dtype: str | None = None
    trained_block_lengths: tuple[int, ...] = ()
    partial_rotary_factor: float = 1.0
    moe: MoEConfig | None = None

    def __post_init__(self) -> None:
        for name in _SIZES:
            if getattr(self, name) < 1:
                raise ModelError(f"config.json says {name} = {getattr(self, name)}; it must be at least 1.")
        if self.rms_norm_eps < 0:
            raise ModelError(f"config.json says rms_norm_eps = {self.rms_norm_eps}; it must be a number of 0 or more.")
        for name, most in (("max_position_embeddings", MOST_POSITIONS), ("num_hidden_layers", MOST_LAYERS)):
            if getattr(self, name) > most:
                raise ModelError(f"config.json says {name} = {getattr(self, name)}; more than {most} cannot be held.")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ModelError(
                f"config.json has {self.num_attention_heads} attention heads and {self.num_key_value_heads} key/value "
                "heads; the first must be a multiple of the second."
            )
        if self.head_dim % 2:
            raise ModelError(f"config.json says head_dim = {self.head_dim}; rotary positions need an even number.")
        if not 0 < self.partial_rotary_factor <= 1 or self.rotary_dim % 2 or self.rotary_dim == 0:
            raise ModelError(
                f"config.json says partial_rotary_factor = {self.partial_rotary_factor}; "
                f"of a head of {self.head_dim} it must take an even number."
            )
        if self.block_length is not None and self.block_length < 1:
            raise ModelError(f"config.json says block_size = {self.block_length}; it must be at least 1.")
        if self.mask_token_id is not None and not 0 <= self.mask_token_id < self.vocab_size:
            raise ModelError(
                f"MASK id {self.mask_token_id} is outside the vocabulary of {self.vocab_size} tokens; "
                "pass the right one as mask_token_id."
            )

    @property
    def groups(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def rotary_dim(self) -> int:
        """Leading dimensions of each head that are rotated by position."""
        return int(self.head_dim * self.partial_rotary_factor)

    def override(self, *, mask_token_id: int | None = None, block_length: int | None = None) -> ModelConfig:
        """The same model with the user's MASK id or block length; None keeps the checkpoint's."""
        return replace(
            self,
            mask_token_id=self.mask_token_id if mask_token_id is None else mask_token_id,
            block_length=self.block_length if block_length is None else block_length,
        )

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        name: str | None = None,
        *,
        mask_token_id: int | None = None,
        block_length: int | None = None,
    ) -> ModelConfig:
        """Reads `config.json` and, if present, `generation_config.json` from a checkpoint folder.

        mask_token_id, block_length: the user's, which hold whatever the files say.

        Raises:
            ModelError: a file is missing or not JSON, a needed key is missing, or the model uses a feature that is
                not supported.
        """
        raw = read_json(folder / "config.json")
        path = folder / "generation_config.json"
        generation = read_json(path) if path.is_file() else {}
        own = given({"mask_token_id": mask_token_id, "block_size": block_length})
        return cls.from_dict(raw, generation, name or folder.name, own)

    @classmethod
    def from_dict(
        cls,
        raw: Mapping[str, Any],
        generation: Mapping[str, Any] = {},
        name: str = "",
        own: Mapping[str, Any] = {},
    ) -> ModelConfig:
        """The same from parsed JSON.

        name: the checkpoint's, for the block length it was trained for. own: values that go before those of the files.
        """
        try:
            trained = _trained_block_lengths(raw, name, "block_size" in own)
            raw = {**_CLASS_DEFAULTS.get(str(raw.get("model_type")), {}), **given(raw), **own}
            _refuse_missing(raw)
            refuse_unsupported(raw)
            heads, layers = integer(raw, "num_attention_heads"), integer(raw, "num_hidden_layers")
            rope = Rope.from_dict(raw, _PARTIAL_FACTORS.get(str(raw["model_type"]), 1.0))
            config = cls(
                model_type=kind(raw, "model_type", str),
                vocab_size=integer(raw, "vocab_size"),
                hidden_size=integer(raw, "hidden_size"),
                intermediate_size=integer(raw, "intermediate_size"),
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=integer(raw, "num_key_value_heads", heads),
                head_dim=integer(raw, "head_dim", integer(raw, "hidden_size") // max(heads, 1)),
                rms_norm_eps=number(raw, "rms_norm_eps", 1e-6),
                rope_theta=rope.theta,
                max_position_embeddings=integer(raw, "max_position_embeddings", 32768),
                tie_word_embeddings=truth(raw, "tie_word_embeddings"),
                attention_bias=truth(raw, "attention_bias"),
                block_length=optional_integer(raw, "block_size", "block_length"),
                mask_token_id=optional_integer(raw, "mask_token_id"),
                torch_dtype=_dtype_name(raw),
                trained_block_lengths=trained,
                partial_rotary_factor=rope.partial_factor,
            )
            config = replace(config, moe=MoEConfig.from_dict(raw, layers))
            own_stop = _stop_ids(raw, "config.json")
        except (TypeError, ValueError, OverflowError) as error:
            raise ModelError(f"config.json holds a value of the wrong kind: {error}.") from error
        try:
            stop = _stop_ids(generation, "generation_config.json")
        except (TypeError, ValueError, OverflowError) as error:
            raise ModelError(f"generation_config.json holds a value of the wrong kind: {error}.") from error
        return replace(config, stop_token_ids=tuple(dict.fromkeys((*stop, *own_stop))))


# What a model type's own code assumes where config.json is silent.
_CLASS_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llada2_moe": {
            "score_function": "sigmoid",
            "n_group": 8,
            "topk_group": 4,
            "routed_scaling_factor": 2.5,
        }
    }
)
_PARTIAL_FACTORS = MappingProxyType({"llada2_moe": 0.5})
# Of models with experts: without them another model would come out.
_ROUTING = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
_NEEDED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"sdar_moe": (*_ROUTING, "norm_topk_prob"), "llada2_moe": _ROUTING}
)
_REQUIRED = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)
_SIZES = (*_REQUIRED[1:], "num_key_value_heads", "head_dim", "max_position_embeddings")


def _refuse_missing(raw: Mapping[str, Any]) -> None:
    missing = [key for key in (*_REQUIRED, *_NEEDED.get(str(raw.get("model_type")), ())) if key not in raw]
    if missing:
        raise ModelError(f"config.json lacks {', '.join(missing)}; is this a block-diffusion language model?")


def _stop_ids(raw: Mapping[str, Any], file: str) -> list[int]:
    """Stop ids in the order found: checkpoints list several."""
    found = integers(raw, "eos_token_id")
    if any(token < 0 for token in found):
        raise ModelError(f"{file} says eos_token_id = {raw['eos_token_id']}; token ids are 0 or more.")
    return found


def _dtype_name(raw: Mapping[str, Any]) -> str | None:
    name = raw.get("torch_dtype") or raw.get("dtype")
    return None if name is None else str(name).removeprefix("torch.")


def _trained_block_lengths(raw: Mapping[str, Any], name: str, overridden: bool) -> tuple[int, ...]:
    match = _BLOCK_IN_NAME.search(name)
    hint = int(match.group(1)) if match else optional_integer(raw, "block_size", "block_length")
    return () if hint is None or (overridden and hint < 1) else (hint,)


def refuse_unsupported(raw: Mapping[str, Any]) -> None:
    """Raises: ModelError for what the layers do not do; ValueError, TypeError."""
    window = raw.get("sliding_window") if truth(raw, "use_sliding_window") else None
    refuse_windows(kind(raw, "layer_types", list, []), window)
    if not truth(raw, "use_qk_norm", True) or truth(raw, "norm_head"):
        raise ModelError(
            "config.json says use_qk_norm = false or norm_head = true; only models with normed queries and keys "
            "and a plain head are supported."
        )
    activation = kind(raw, "hidden_act", str, "silu")
    if activation != "silu":
        raise ModelError(f"hidden_act {activation!r} is not supported; only 'silu' (SwiGLU) is.")


def refuse_windows(layer_types: Iterable[Any], window: Any) -> None:
    """Raises: ModelError for layers that see only part of the text. window: tokens that all layers see, if not all."""
    other = next((one for one in layer_types if one != "full_attention"), None)
    if other is not None:
        window_too = " (sliding-window attention)" if other == "sliding_attention" else ""
        raise ModelError(f"layers of type {other!r}{window_too} are not supported; only models of full attention are.")
    if window:
        raise ModelError(
            f"sliding-window attention ({window} tokens) is not supported; "
            "set use_sliding_window to false in the configuration if the model does not need it."
        )
