"""How the engine runs, whatever it decodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from simsd.engine.options import DecodingOptions, check_names, truth, whole
from simsd.errors import ConfigError
from simsd.models.config import MOST_POSITIONS


def decoding_options(
    method: str | None, given: Mapping[str, Any], *, block_length: int | None, mask_token_id: int | None
) -> DecodingOptions:
    """The options as they are given, and all that is wrong with them whatever the checkpoint: minutes may be spent on
    loading one. How long its blocks are, it will say itself. Raises: ConfigError.
    """
    check_names(given)
    options = DecodingOptions(method=method or "exact", **given)
    longest = MOST_POSITIONS if block_length is None else block_length
    replace(options, block_length=longest).resolve(has_draft_model=True)
    for name, value in (("block_length", block_length), ("mask_token_id", mask_token_id)):
        if value is not None:
            whole(name, value, 0 if name == "mask_token_id" else 1)
    return options


@dataclass(frozen=True)
class EngineSettings:
    """What changes no text; `LLM` says what each means.

    Raises: ConfigError.
    """

    max_num_seqs: int = 16
    max_model_len: int | None = None
    prefix_caching: bool = True
    draft_ahead: bool | None = None
    enforce_eager: bool = False
    trace: bool = False

    def __post_init__(self) -> None:
        whole("max_num_seqs", self.max_num_seqs, 1)
        if self.max_model_len is not None:
            whole("max_model_len", self.max_model_len, 2)
        if self.draft_ahead is not None:
            truth("draft_ahead", self.draft_ahead)
        for name in ("prefix_caching", "enforce_eager", "trace"):
            truth(name, getattr(self, name))

    def check_ranks(self, size: int) -> None:
        """Refuses what cannot be done where `size` ranks share both models. Raises ConfigError."""
        if self.draft_ahead and size > 1:
            raise ConfigError(
                f"draft_ahead is True, but tensor_parallel_size {size} splits both models among the same ranks, which "
                "do one thing at a time; leave one of them out",
                "draft_ahead",
            )

    def longest(self, options: DecodingOptions, positions: int) -> int:
        """Most tokens of prompt and answer together: whole blocks, on a model of so many positions."""
        size = options.block_length
        # numbering the slots on (the ablation) uses positions one block further
        reach = positions - (0 if options.position_copy else size)
        most = min(self.max_model_len or reach, reach)
        if most < size:
            raise ConfigError(
                f"prompt and answer together may have {most} tokens, which is less "
                f"than one block of {size}; raise max_model_len or choose a shorter block_length"
            )
        return most // size * size

    def changed(self, given: Mapping[str, Any]) -> tuple[EngineSettings, dict[str, Any]]:
        """With those of the `given` values that are its own; and the others."""
        own = {f.name for f in fields(self)}
        mine = {name: value for name, value in given.items() if name in own}
        return replace(self, **mine), {name: value for name, value in given.items() if name not in own}
