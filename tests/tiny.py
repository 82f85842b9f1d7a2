"""Small random transformers, draft models that mostly agree with them, and an engine around both."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simsd.drafters.base import Drafter
from simsd.engine.auto import Auto
from simsd.engine.graphs import Graphs
from simsd.engine.options import DecodingOptions, SamplingParams
from simsd.engine.request import Sequence
from simsd.engine.runner import Runner
from simsd.engine.scheduler import Scheduler
from simsd.models.loader import LoadedModel, load
from tests.models.checkpoints import random_checkpoint, random_config, random_weights, save_weights

VOCAB, MASK = 64, 63
POSITIONS = 256


def write_checkpoint(folder: Path, *, layers: int = 2, seed: int = 0, noise: float = 0.0, **config: Any) -> Path:
    """A random checkpoint with clear preferences; with `noise` it is the same model a little off."""
    sizes: dict[str, Any] = {"vocab_size": VOCAB, "mask_token_id": MASK, "hidden_size": 32, "intermediate_size": 48}
    values: dict[str, Any] = sizes | {"num_hidden_layers": layers, "max_position_embeddings": POSITIONS} | config
    random_checkpoint(folder, seed=seed, **values)
    weights = random_weights(random_config(**values), seed=seed)
    generator = torch.Generator().manual_seed(1000 + seed)
    for weight in weights.values():
        weight += noise * weight.std() * torch.randn(weight.shape, generator=generator)
    weights["lm_head.weight"] *= 3  # sure of some tokens, unsure of others
    save_weights(folder, weights)
    return folder


_HOME = tempfile.TemporaryDirectory(prefix="simsd-tests-")  # removed when the process ends


@cache
def folder_of(layers: int, seed: int, noise: float) -> Path:
    return write_checkpoint(Path(_HOME.name) / f"{layers}-{seed}-{noise}", layers=layers, seed=seed, noise=noise)


@cache
def tiny_model(layers: int = 2, seed: int = 0, noise: float = 0.0, dtype: str = "float64") -> LoadedModel:
    """A random model of 64 tokens, MASK the last of them."""
    return load(folder_of(layers, seed, noise), dtype, "cpu")


def runner(model: LoadedModel, block_length: int, graphs: Graphs | None = None) -> Runner:
    return Runner(model.model, MASK, block_length, POSITIONS, graphs=graphs)


@dataclass
class Request:
    """What one sequence is asked for."""

    prompt: list[int]
    params: SamplingParams
    stop_ids: frozenset[int] = frozenset()
    memory: dict[str, Any] = field(default_factory=dict)


def engine(
    target: LoadedModel,
    block_length: int,
    drafter: Drafter | None = None,
    *,
    max_num_seqs: int = 16,
    trace: bool = False,
    auto: Auto | None = None,
    graphs: Graphs | None = None,
    **options: Any,
) -> Scheduler:
    """A scheduler; without a drafter it decodes in the ordinary way. Text is letters, one for each id."""
    method = "exact" if drafter is not None else "none"
    given = DecodingOptions(**({"method": method, "block_length": block_length} | options)).resolve(True)
    run = runner(target, block_length, graphs)
    return Scheduler(given, run, drafter, decode=as_text, max_num_seqs=max_num_seqs, trace=trace, auto=auto)


def as_text(ids: Many[int]) -> str:
    return "".join(chr(ord("A") + i) for i in ids)


def submit(scheduler: Scheduler, requests: Many[Request]) -> list[Sequence]:
    """Queues the requests, to be decoded by `step`."""
    options = scheduler.decoder.options
    sequences = [
        Sequence(i, list(r.prompt), r.params.resolve(options, 0), r.stop_ids, options.block_length, MASK)
        for i, r in enumerate(requests)
    ]
    for sequence, request in zip(sequences, requests, strict=True):
        sequence.memory |= request.memory
        scheduler.add(sequence)
    return sequences


def decode(scheduler: Scheduler, requests: Many[Request]) -> list[Sequence]:
    """Decodes all requests to their end."""
    sequences = submit(scheduler, requests)
    while scheduler.busy:
        scheduler.step()
    return sequences


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Random ids, MASK never."""
    return torch.randint(0, MASK, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Equal but for the rounding of float64."""
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
