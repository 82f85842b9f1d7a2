"""What a checkpoint's `config.json` says about the model, checked once and read-only from then on."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from simsd.errors import ModelError

MOST_POSITIONS = 1 << 22  # the rotary table has a row for each
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
        if not raw.get("num_experts"):
            return None
        step = max(_int(_get(raw, "decoder_sparse_step", 1)), 1)
        dense = {_int(index) for index in _kind(raw.get("mlp_only_layers") or [], list)}
        dense |= set(range(_int(_get(raw, "first_k_dense_replace", 0))))
        return cls(
            num_experts=_int(raw["num_experts"]),
            num_experts_per_tok=_int(_get(raw, "num_experts_per_tok", 1)),
            moe_intermediate_size=_int(_get(raw, "moe_intermediate_size", raw["intermediate_size"])),
            sparse_layers=tuple(i for i in range(num_hidden_layers) if i not in dense and (i + 1) % step == 0),
            norm_topk_prob=_kind(_get(raw, "norm_topk_prob", True), bool),
            score_function=_kind(_get(raw, "score_function", "softmax"), str),
            n_group=_int(_get(raw, "n_group", 1)),
            topk_group=_int(_get(raw, "topk_group", 1)),
            routed_scaling_factor=float(_get(raw, "routed_scaling_factor", 1.0)),
            num_shared_experts=_int(_get(raw, "num_shared_experts", 0)),
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
        if not (math.isfinite(self.rope_theta) and self.rope_theta > 0):
            raise ModelError(f"config.json says rope_theta = {self.rope_theta}; it must be a number above 0.")
        if not (math.isfinite(self.rms_norm_eps) and self.rms_norm_eps >= 0):
            raise ModelError(f"config.json says rms_norm_eps = {self.rms_norm_eps}; it must be a number of 0 or more.")
        if self.max_position_embeddings > MOST_POSITIONS:
            raise ModelError(
                f"config.json says max_position_embeddings = {self.max_position_embeddings}; "
                f"more than {MOST_POSITIONS} cannot be held."
            )
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
    def from_folder(cls, folder: Path, name: str | None = None) -> ModelConfig:
        """Reads `config.json` and, if present, `generation_config.json` from a checkpoint folder.

        Raises:
            ModelError: a file is missing or not JSON, a needed key is missing, or the model uses a feature that is
                not supported.
        """
        raw = read_json(folder / "config.json")
        path = folder / "generation_config.json"
        generation = read_json(path) if path.is_file() else {}
        return cls.from_dict(raw, generation, name or folder.name)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], generation: Mapping[str, Any] = {}, name: str = "") -> ModelConfig:
        """The same from parsed JSON; `name` is the checkpoint's name, for the block length it was trained for."""
        raw = {**_CLASS_DEFAULTS.get(str(raw.get("model_type")), {}), **raw}
        missing = [key for key in _REQUIRED if raw.get(key) is None]
        if missing:
            raise ModelError(f"config.json lacks {', '.join(missing)}; is this a block-diffusion language model?")
        try:
            _refuse_unsupported(raw)
            heads, layers = _int(raw["num_attention_heads"]), _int(raw["num_hidden_layers"])
            return cls(
                model_type=_kind(raw["model_type"], str),
                vocab_size=_int(raw["vocab_size"]),
                hidden_size=_int(raw["hidden_size"]),
                intermediate_size=_int(raw["intermediate_size"]),
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=_int(_get(raw, "num_key_value_heads", heads)),
                head_dim=_int(_get(raw, "head_dim", _int(raw["hidden_size"]) // max(heads, 1))),
                rms_norm_eps=float(_get(raw, "rms_norm_eps", 1e-6)),
                rope_theta=_rope_theta(raw),
                max_position_embeddings=_int(_get(raw, "max_position_embeddings", 32768)),
                tie_word_embeddings=_kind(_get(raw, "tie_word_embeddings", False), bool),
                attention_bias=_kind(_get(raw, "attention_bias", False), bool),
                block_length=_optional_int(raw, "block_size", "block_length"),
                mask_token_id=_optional_int(raw, "mask_token_id"),
                stop_token_ids=_stop_ids(generation, raw),
                torch_dtype=_dtype_name(raw),
                trained_block_lengths=_trained_block_lengths(raw, name),
                partial_rotary_factor=float(_get(_rope(raw) | raw, "partial_rotary_factor", 1.0)),
                moe=MoEConfig.from_dict(raw, layers),
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise ModelError(f"config.json holds a value of the wrong kind: {error}.") from error


# What a model type's own code assumes where config.json is silent.
_CLASS_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"llada2_moe": {"partial_rotary_factor": 0.5, "score_function": "sigmoid"}}
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


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or a ModelError that names the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except FileNotFoundError as error:
        raise ModelError(f"{path} does not exist; the checkpoint folder is incomplete.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object.")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _int(value: Any) -> int:
    """A whole number; 2.7 layers are a mistake, not two."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ValueError(f"{value!r} is not a whole number")
    return int(value)


def _kind(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not a {kind.__name__}")
    return value


def _get(raw: Mapping[str, Any], key: str, default: Any) -> Any:
    value = raw.get(key)
    return default if value is None else value


def _optional_int(raw: Mapping[str, Any], *keys: str) -> int | None:
    for key in keys:
        if raw.get(key) is not None:
            return _int(raw[key])
    return None


def _rope(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary parameters, wherever this version of transformers wrote them."""
    merged: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        if isinstance(raw.get(key), dict):
            merged |= raw[key]
    return merged


def _rope_theta(raw: Mapping[str, Any]) -> float:
    top = raw.get("rope_theta")
    return float(_get(_rope(raw), "rope_theta", 10000.0) if top is None else top)


def _stop_ids(*sources: Mapping[str, Any]) -> tuple[int, ...]:
    """All stop ids, in the order found and without repeats: checkpoints list several, in either file."""
    found: list[int] = []
    for source in sources:
        ids = source.get("eos_token_id")
        found += [] if ids is None else [_int(i) for i in (ids if isinstance(ids, list) else [ids])]
    return tuple(dict.fromkeys(found))


def _dtype_name(raw: Mapping[str, Any]) -> str | None:
    name = raw.get("torch_dtype") or raw.get("dtype")
    return None if name is None else str(name).removeprefix("torch.")


def _trained_block_lengths(raw: Mapping[str, Any], name: str) -> tuple[int, ...]:
    match = _BLOCK_IN_NAME.search(name)
    hint = int(match.group(1)) if match else _optional_int(raw, "block_size", "block_length")
    return () if hint is None else (hint,)


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    rope = _rope(raw)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in ("default", "none"):
        raise ModelError(f"rope_scaling of type {kind!r} is not supported; remove it from config.json to run unscaled.")
    layers = _kind(raw.get("layer_types") or [], list)
    if "sliding_attention" in layers or (raw.get("use_sliding_window") and raw.get("sliding_window")):
        raise ModelError(
            f"sliding-window attention ({raw.get('sliding_window')} tokens) is not supported; "
            "set use_sliding_window to false in config.json if the model does not need it."
        )
    if raw.get("use_qk_norm") is False or raw.get("norm_head"):
        raise ModelError(
            "config.json says use_qk_norm = false or norm_head = true; only models with normed queries and keys "
            "and a plain head are supported."
        )
    activation = raw.get("hidden_act") or "silu"
    if activation != "silu":
        raise ModelError(f"hidden_act {activation!r} is not supported; only 'silu' (SwiGLU) is.")
