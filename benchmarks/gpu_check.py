"""Is it right on this device, and how fast? Correctness first, then timings; a few minutes on a GPU.

    python -m benchmarks.gpu_check                       # the embedded pair on CUDA
    python -m benchmarks.gpu_check --device cpu --limit 1 --max-tokens 16
    python -m benchmarks.gpu_check --model JetLM/SDAR-8B-Chat --draft-model JetLM/SDAR-1.7B-Chat --dtype bfloat16

First the embedded pair in float64, whatever model is given. Exit code 1 if there an exact method's text is not ordinary
decoding's, a text is another one with CUDA graphs, or a method on a CUDA device replayed none. In the model's own dtype
the share of equal texts is told: kernels that choose their algorithm by the number of rows may turn a tie
(docs/design/exactness.md). Forwards are timed with PyTorch's fused attention and with FlexAttention, behind a short and
a long text. Figures are JSON, a line each; what they come to is the last line, on standard error.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.arguments import positive
from benchmarks.timing import median
from simsd import LLM, SamplingParams
from simsd.benchmark.cell import matrix
from simsd.benchmark.device import device_name
from simsd.benchmark.measure import Settings
from simsd.benchmark.run import run
from simsd.benchmark.workload import Item, ask, load_items
from simsd.engine.costs import forward_of
from simsd.engine.graphs import Graphs
from simsd.engine.runner import Runner
from simsd.errors import ConfigError, SimsdError
from simsd.evaluation.suites import SUITES
from simsd.models.attention import Attend, attend, flexible
from simsd.models.transformer import Transformer

METHODS = ("none", "simsd", "exact", "exact-draft-order")
SCHEDULES = ("low_confidence_static", "low_confidence_dynamic")
WINDOW = 8
ROWS = (4, 8, 20, 64)
PREFIXES = (256, 4096)


def agreement(llm: LLM, items: Sequence[Item], max_tokens: int) -> list[dict[str, Any]]:
    """Of each schedule and temperature, alone and in a batch: the share of exact texts that are ordinary decoding's."""
    found = []
    for schedule in SCHEDULES:
        for temperature in (0.0, 1.0):
            params = [
                SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed) for seed in range(len(items))
            ]
            common: dict[str, Any] = {"remasking_strategy": schedule, "prefix_caching": False}
            ordinary = ask(llm.with_options(method="none", max_num_seqs=1, **common), items, params)
            for sequences in (1, 8):
                fast = llm.with_options(method="exact", num_speculative_tokens=WINDOW, max_num_seqs=sequences, **common)
                pairs = zip(ordinary, ask(fast, items, params), strict=True)
                same = sum(one.token_ids == other.token_ids for one, other in pairs) / len(items)
                found.append(
                    {"schedule": schedule, "temperature": temperature, "sequences": sequences, "same_text": same}
                )
    return found


def graphs_of(llm: LLM) -> list[Graphs]:
    """Those of the target, and of the draft model where it has drafted."""
    drafter: Any = llm._scheduler.drafter
    draft_model = getattr(getattr(drafter, "drafter", drafter), "forward", None)
    runners = [llm._scheduler.target, *([] if draft_model is None else [draft_model])]
    return [runner.graphs for runner in runners if runner.graphs is not None]


def graphed(llm: LLM, items: Sequence[Item], max_tokens: int) -> list[dict[str, Any]]:
    """Of each method, alone and in a batch: whether texts are the same with CUDA graphs and without, the time without
    by the time with (above 1 graphs are faster), and what target and draft model together recorded and replayed.

    The first run of each records, and is not timed.
    """
    params = [SamplingParams(max_tokens=max_tokens, temperature=seed % 2, seed=seed) for seed in range(len(items))]
    found = []
    for method in METHODS:
        for sequences in (1, 8):
            given: dict[str, Any] = {"method": method, "max_num_seqs": sequences, "prefix_caching": False}
            ways = [llm.with_options(**given, enforce_eager=eager) for eager in (True, False)]
            texts = [[one.token_ids for one in ask(way, items, params)] for way in ways]
            seconds: list[list[float]] = [[], []]
            for _ in range(3):
                for way, taken in zip(ways, seconds, strict=True):
                    begin = time.perf_counter()
                    ask(way, items, params)
                    taken.append(time.perf_counter() - begin)
            eager, fast = (statistics.median(taken) for taken in seconds)
            own = graphs_of(ways[1])
            counts = {"graphs": sum(map(len, own)), "replays": sum(one.replays for one in own)}
            same = texts[0] == texts[1]
            found.append(given | {"same_text": same, "eager_to_graphs": eager / fast, **counts})
    return found


@torch.inference_mode()
def forwards(llm: LLM) -> list[dict[str, Any]]:
    """Median seconds of a target forward by query tokens, head included, behind so many tokens, by attention."""
    mask_id, size, most = llm.config.mask_token_id, llm.options.block_length, llm.config.max_position_embeddings
    assert mask_id is not None
    found = []
    for kind, model in attentions(llm._target.model).items():
        for prefix in (length for length in PREFIXES if length + max(ROWS) + size < most):
            seconds = {}
            for rows in ROWS:
                count = -(-rows // size) * size
                runner = Runner(model, mask_id, size, most)
                seconds[count] = median(forward_of(runner, count, prefix // size * size), 20)
            found.append({"attention": kind, "prefix": prefix, "seconds": seconds})
    return found


def attentions(model: Any) -> dict[str, Any]:
    """The model with each kind of attention that it can have here; a module of transformers as it is."""
    if not isinstance(model, Transformer):
        return {"module": model}
    kinds: dict[str, Attend] = {"sdpa": attend}
    try:
        kinds["flex"] = flexible(model.config, model.dtype, model.device)
    except ConfigError as error:
        print(f"without FlexAttention: {error}", file=sys.stderr)
    found: dict[str, Any] = {}
    for kind, function in kinds.items():
        found[kind] = copy.copy(model)
        found[kind].attend = function
    return found


def speeds(llm: LLM, items: Sequence[Item], max_tokens: int) -> list[dict[str, Any]]:
    """The methods against both baselines, batch 1 and greedy."""
    cells = matrix(
        ("simsd", "exact", "exact-draft-order"), temperatures=(0.0,), fixed={"num_speculative_tokens": WINDOW}
    )
    report = run(llm, cells, items, Settings(max_tokens=max_tokens, repeats=3), progress=sys.stderr.isatty())
    names = ("cell", "tokens_per_forward", "acceptance_rate", "ratio_to_static", "same_text")
    return [{name: row.to_dict()[name] for name in names} for row in report.rows]


def failures(checks: Sequence[dict[str, Any]], recorded: Sequence[dict[str, Any]], cuda: bool) -> list[str]:
    """What is wrong with texts in float64, and with graphs. Empty if nothing is."""

    def named(check: dict[str, Any], *names: str) -> str:
        return ", ".join(f"{name} {check[name]}" for name in names)

    other = [c for c in checks if c["same_text"] < 1.0]
    changed = [c for c in recorded if not c["same_text"]]
    idle = [c for c in recorded if cuda and not c["replays"]]
    return [
        *(f"exact is not ordinary decoding: {named(c, 'schedule', 'temperature', 'sequences')}" for c in other),
        *(f"another text with CUDA graphs: {named(c, 'method', 'max_num_seqs')}" for c in changed),
        *(f"no CUDA graph was replayed: {named(c, 'method', 'max_num_seqs')}" for c in idle),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model")
    parser.add_argument("--draft-model")
    dtypes = ("auto", "float32", "bfloat16", "float16", "float64")
    parser.add_argument("--dtype", default="float32", choices=dtypes, help="of the second check and of the timings")
    parser.add_argument("--limit", type=positive, default=4, help="questions of each suite")
    parser.add_argument("--max-tokens", type=positive, default=96)
    args = parser.parse_args()
    items = load_items(SUITES, args.limit)

    try:
        precise = LLM(dtype="float64", device=args.device)
        llm = LLM(args.model, draft_model=args.draft_model, dtype=args.dtype, device=args.device)
    except SimsdError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    recorded = graphed(precise, items, args.max_tokens)
    print(json.dumps({"float64 with graphs": recorded}), flush=True)
    checks = agreement(precise, items, args.max_tokens)
    print(json.dumps({"float64": checks}), flush=True)
    print(json.dumps({f"{args.dtype} with graphs": graphed(llm, items, args.max_tokens)}), flush=True)
    print(json.dumps({args.dtype: agreement(llm, items, args.max_tokens)}), flush=True)
    print(json.dumps({"device": device_name(llm.device), "forwards": forwards(llm)}), flush=True)
    print(json.dumps({"speeds": speeds(llm, items, args.max_tokens)}), flush=True)
    cuda = llm.device.type == "cuda"
    wrong = failures(checks, recorded, cuda)
    for one in wrong:
        print(f"wrong: {one}", file=sys.stderr)
    graphs = "with CUDA graphs too" if cuda else "without CUDA graphs, which this device has not"
    print(f"{len(wrong)} wrong" if wrong else f"right: every text in float64, {graphs}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
