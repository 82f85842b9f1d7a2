"""What is refused before a cluster is started or joined: what `LLM` would refuse in a replica, before its weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from simsd.cluster.settings import ReplicaPlan
from simsd.engine.options import choose, whole
from simsd.engine.settings import EngineSettings, decoding_options
from simsd.models.loader import EMBEDDED, LoadedModel, look_at, pick_device
from simsd.models.pair import QUANTIZE, open_pair

_OWN = ("block_length", "mask_token_id")
_SIZES = (*_OWN, "max_model_len", "tensor_parallel_size")
_PLACES = ("dtype", "device", "draft_device", "quantize")


def check(plan: ReplicaPlan, *, here: bool) -> None:
    """Raises: ModelError, PairError, ConfigError.

    here: the replicas will be on this machine, so that its memory and its devices are theirs. On a cluster that is
    joined, models are looked at where they are folders of this machine; others it need not have.
    """
    options = dict(plan.llm)
    model, draft_model = options.pop("model", None), options.pop("draft_model", None)
    method = options.pop("method", None)
    loading = {name: options.pop(name) for name in (*_SIZES, *_PLACES) if name in options}
    engine, options = EngineSettings(plan.max_num_seqs, loading.get("max_model_len")).changed(options)
    ranks, own = loading.get("tensor_parallel_size", 1), {name: loading.get(name) for name in _OWN}
    whole("tensor_parallel_size", ranks, 1)
    engine.check_ranks(ranks)
    given = decoding_options(method, options, **own)
    choose("quantize", loading.get("quantize", "none"), QUANTIZE)
    if not here:
        if not (_is_here(model) and _is_here(draft_model)):
            return
        loading |= {name: "cpu" for name in ("device", "draft_device") if name in loading}
    target, draft = open_pair(model, draft_model, load=_look, check_memory=here, **loading)
    method = method or ("none" if draft is None else "exact")
    replace(given, method=method, block_length=target.config.block_length or 4).resolve(draft is not None)


def _is_here(model: str | None) -> bool:
    return model is None or model in EMBEDDED or Path(model).is_dir()


def _look(
    model: str | Path, dtype: str, device: str, mask_token_id: int | None, block_length: int | None, int8: bool
) -> LoadedModel[Any]:
    """All that is known of a checkpoint without its weights."""
    found, tokenizer = look_at(model, dtype, pick_device(device), mask_token_id, block_length, int8)
    unread: Any = None
    return LoadedModel(unread, found.config, tokenizer, str(model), found.fingerprint)
