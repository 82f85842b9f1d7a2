"""What a checkpoint's `config.json` says about the model, checked once and read-only from then on."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simsd.errors import ModelError

MOST_POSITIONS = 1 << 22  # the rotary table has a row for each
_BLOCK_IN_NAME = re.compile(r"[-_]b(\d+)(?![a-z0-9])", re.IGNORECASE)


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and special ids of an SDAR checkpoint (method section 1).

    `block_length` and `mask_token_id` are None when the checkpoint does not state them; `registry.with_defaults`
    fills them in. `trained_block_lengths` is only a hint: `-b8` in the checkpoint's name, else its `block_size`.
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
        missing = [key for key in _REQUIRED if raw.get(key) is None]
        if missing:
            raise ModelError(f"config.json lacks {', '.join(missing)}; is this a block-diffusion language model?")
        try:
            _refuse_unsupported(raw)
            heads = _int(raw["num_attention_heads"])
            return cls(
                model_type=_kind(raw["model_type"], str),
                vocab_size=_int(raw["vocab_size"]),
                hidden_size=_int(raw["hidden_size"]),
                intermediate_size=_int(raw["intermediate_size"]),
                num_hidden_layers=_int(raw["num_hidden_layers"]),
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
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise ModelError(f"config.json holds a value of the wrong kind: {error}.") from error


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
    activation = raw.get("hidden_act") or "silu"
    if activation != "silu":
        raise ModelError(f"hidden_act {activation!r} is not supported; only 'silu' (SwiGLU) is.")
