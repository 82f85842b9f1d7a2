"""What our own kernels give on a CPU: the parts of a forward with them, and with PyTorch's operators alone.

    python -m benchmarks.kernels   # prints the seconds of one of the two, as SIMSD_NATIVE says

`benchmarks.performance` runs both, each in a process of its own, taking turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import torch

from benchmarks.random_models import built, configured
from benchmarks.timing import forward_call, median
from simsd.models.layer import Attention, Rows
from simsd.models.linear import Linear
from simsd.models.mlp import MLP, SwiGLU
from simsd.models.moe import Experts
from simsd.models.parts import stacked_experts
from simsd.models.transformer import Transformer

ROWS = (4, 20, 64)
DTYPES = (torch.float32, torch.bfloat16)
PREFIX = 256
TURNS = 3
EXPERTS = {"experts": 128, "hidden": 2048, "inner": 512, "top_k": 8}  # of one layer

Calls = dict[str, Callable[[], object]]


@torch.inference_mode()
def measured() -> list[dict[str, Any]]:
    """Seconds of each part, for some query tokens behind a prefix, at the embedded target's shape."""
    found = []
    for dtype in DTYPES:
        model, experts = built(configured({}), dtype), some_experts(dtype)
        for rows in ROWS:
            calls = parts(model, rows) | {"experts": expert_call(experts, rows, dtype)}
            for part, call in calls.items():
                repeats = 7 if part == "experts" else 51
                name = str(dtype).removeprefix("torch.")
                found.append({"part": part, "dtype": name, "rows": rows, "seconds": median(call, repeats)})
    return found


def parts(model: Transformer, rows: int) -> Calls:
    """Each over all layers, so that no weight waits in a nearer cache than in a forward."""
    config, dtype = model.config, model.dtype
    positions = torch.arange(PREFIX, PREFIX + rows)[None]
    bias = torch.zeros(1, 1, rows, PREFIX + rows, dtype=dtype)
    given = Rows(
        model.rotary[positions], bias, model.make_cache(1, PREFIX + rows), PREFIX, PREFIX + rows, config.groups
    )
    layers = products(model)
    inputs = {layer.inputs: torch.randn(rows, layer.inputs).to(dtype) for layer in layers}
    x = inputs[config.hidden_size]
    return {
        "products": lambda: [layer(inputs[layer.inputs]) for layer in layers],
        "attention halves": lambda: [layer.attention(x, given, at) for at, layer in enumerate(model.layers)],
        "MLP halves": lambda: [layer.mlp(x) for layer in model.layers],
        "forward": forward_call(model, rows, PREFIX),
    }


def products(model: Transformer) -> list[Linear]:
    """All of a dense model's, the head's too."""
    found: list[Any] = []
    for layer in model.layers:
        assert isinstance(layer.attention, Attention)
        assert isinstance(layer.mlp, MLP)
        swiglu = layer.mlp.part
        assert isinstance(swiglu, SwiGLU)
        found += [layer.attention.qkv, layer.attention.output, swiglu.gate_up, swiglu.down]
    found.append(model.lm_head)
    assert all(isinstance(layer, Linear) for layer in found)
    return found


def some_experts(dtype: torch.dtype) -> Experts:
    count, hidden, inner = (EXPERTS[name] for name in ("experts", "hidden", "inner"))
    shapes = [(2 * inner, hidden), (hidden, inner)]
    noise = [[(torch.randn(shape) * 0.02).to(dtype) for _ in range(count)] for shape in shapes]
    gate_up, down = (stacked_experts(each, count, torch.device("cpu"), dtype) for each in noise)
    return Experts(gate_up, down)


def expert_call(experts: Experts, rows: int, dtype: torch.dtype) -> Callable[[], object]:
    torch.manual_seed(rows)
    x = torch.randn(rows, EXPERTS["hidden"]).to(dtype)
    chosen = torch.stack([torch.randperm(EXPERTS["experts"])[: EXPERTS["top_k"]] for _ in range(rows)])
    weights = torch.rand(chosen.shape)
    return lambda: experts(x, chosen, weights)


def steps(threads: int) -> list[dict[str, Any]]:
    """Time with PyTorch's operators over time with our kernels: medians over turns."""
    taken: dict[tuple[str, str, int], dict[str, list[float]]] = {}
    for _, native in product(range(TURNS), ("1", "0")):
        command = [sys.executable, "-m", "benchmarks.kernels"]
        environment = os.environ | {"SIMSD_NATIVE": native, "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        for row in json.loads(done.stdout):
            key = row["part"], row["dtype"], row["rows"]
            taken.setdefault(key, {"1": [], "0": []})[native].append(row["seconds"])
    return [
        {
            "part": part,
            "dtype": dtype,
            "rows": rows,
            "without_over_with": statistics.median(each["0"]) / statistics.median(each["1"]),
            "share_of_forward": statistics.median(each["1"]) / statistics.median(taken["forward", dtype, rows]["1"]),
        }
        for (part, dtype, rows), each in taken.items()
    ]


if __name__ == "__main__":
    print(json.dumps(measured()))
