"""What docs/performance.md is made from: kernels, forwards, batches, methods, long texts, heads.

    python -m benchmarks.performance                 # everything (half an hour, 20 GB), then the page
    python -m benchmarks.performance --only steps    # one part
    python -m benchmarks.performance --page          # the page alone, from the committed figures

Compare ratios, not absolute figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.arguments import positive
from benchmarks.batches import SCHEDULES, batches, first_items
from benchmarks.draws import draws
from benchmarks.kernels import steps
from benchmarks.performance_page import write_page
from benchmarks.random_models import SIZES, RandomWeights, built, configured
from benchmarks.timing import BLOCK, REPEATS, forward_call, median
from benchmarks.windows import windows
from simsd import LLM, SamplingParams, __version__
from simsd.benchmark.cell import matrix
from simsd.benchmark.device import device_name
from simsd.benchmark.measure import Settings
from simsd.benchmark.run import run
from simsd.evaluation.suites import SUITES
from simsd.models.memory import Placed, cache_bytes

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "performance.json"
METHODS = (
    "method",
    "schedule",
    "tokens_per_second",
    "ratio_to_static",
    "ratio_to_schedule",
    "tokens_per_forward",
    "query_tokens_per_forward",
    "draft_forwards_per_forward",
    "ms_per_forward",
    "same_text",
)
STATIC, DYNAMIC = SCHEDULES


# ---------------------------------------------------------------------- the memory's speed
def read_bandwidth(nbytes: int) -> float:
    """Bytes a second that a plain read of so many bytes comes to; beyond 1 GiB the same ones are read again."""
    part = torch.ones(min(nbytes, 1 << 30) // 4, dtype=torch.int32)
    return part.nbytes / median(lambda: part.max())


def forwards() -> list[dict[str, Any]]:
    """Forwards of 4, 8, 20 and 64 query tokens at each size and dtype, on one thread and on two, beside a plain read of
    the same bytes by as many threads."""
    before = torch.get_num_threads()
    found = []
    for name, changes in SIZES.items():
        config = configured(changes)
        shapes = RandomWeights(config).shapes.values()
        for dtype in (torch.float32, torch.bfloat16):
            model = built(config, dtype)
            # the head reads the embedding where the two are tied; a few rows of the embedding are looked up
            nbytes = sum(torch.Size(shape).numel() for shape in shapes) * dtype.itemsize
            for threads in (1, 2):
                torch.set_num_threads(threads)
                plain = nbytes / read_bandwidth(nbytes)
                seconds = {rows: median(forward_call(model, rows, 256)) for rows in (4, 8, 20, 64)}
                found.append(
                    {
                        "model": name,
                        "dtype": str(dtype).removeprefix("torch."),
                        "threads": threads,
                        "bytes": nbytes,
                        "read_seconds": plain,
                        "seconds": seconds,
                        "share_of_bandwidth": {rows: plain / taken for rows, taken in seconds.items()},
                    }
                )
                print(json.dumps(found[-1]), flush=True)
            del model
    torch.set_num_threads(before)
    return found


# ---------------------------------------------------------------------- the methods, by threads and dtype
def methods(questions: int, repeats: int) -> list[dict[str, Any]]:
    """One sequence, greedy, B = 4: the methods against ordinary decoding, on one thread and on two, in both dtypes."""
    items = first_items(questions)
    settings = Settings(max_tokens=128, repeats=repeats)
    cells = matrix(("none", "simsd", "exact"), block_lengths=(BLOCK,))
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for dtype in ("float32", "bfloat16"):
            report = run(LLM(method="none", dtype=dtype, device="cpu"), cells, items, settings, progress=True)
            rows = [row.to_dict() for row in report.rows]
            found += [{"threads": threads, "dtype": dtype, **{name: row[name] for name in METHODS}} for row in rows]
    torch.set_num_threads(before)
    return found


# ---------------------------------------------------------------------- a plain loop
def plain_loop(questions: int, repeats: int) -> list[dict[str, Any]]:
    """Each schedule beside the plain loop of peers/plain.py, prefill included, on one thread and on two."""
    found = []
    for threads, (schedule, given) in product((1, 2), {STATIC: "", DYNAMIC: " threshold=0.9"}.items()):
        peers = [f"plain=benchmarks/peers/plain.py:load block_length={BLOCK}{given}"]
        for method in ("none", "exact"):
            ours = f"benchmarks/peers/ours.py:load method={method} remasking_strategy={schedule} block_length={BLOCK}"
            peers.append(f"{method}={ours} dtype=float32 device=cpu")
        words = [word for peer in peers for word in ("--callable", peer)]
        limit = -(-questions // len(SUITES))
        settings = ("--threads", threads, "--limit", limit, "--repeats", repeats, "--max-tokens", 128, "--json")
        command = [sys.executable, "-m", "benchmarks.peers.compare", *words, *map(str, settings)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
        for row in json.loads(done.stdout)["peers"]:
            figures = {name: row[name] for name in ("peer", "tokens_per_second", "ratio", "same")}
            found.append({"threads": threads, "schedule": schedule, **figures})
    return found


# ---------------------------------------------------------------------- long texts
def long_texts() -> list[dict[str, Any]]:
    """Forwards of 4 and of 20 query tokens by the length of the text, and the cache that it takes."""
    config = configured({"max_position_embeddings": 8192})
    model = built(config, torch.float32)
    rows = []
    for length in (256, 1024, 2048, 4096, 8000):
        calls = {count: forward_call(model, count, length) for count in (4, 20)}
        rows.append(
            {
                "tokens": length,
                "seconds": {count: median(call, 21) for count, call in calls.items()},
                "cache_bytes": model.make_cache(1, length).nbytes,
                "told_bytes": cache_bytes(Placed("random", config, model.dtype, (model.device,)), 1, length),
            }
        )
    return rows


# ---------------------------------------------------------------------- common heads
def common_heads() -> dict[str, Any]:
    """A prompt of 800 tokens and a block of answer: new, and with its first 768 tokens in the cache."""
    llm = LLM(dtype="float32", device="cpu", num_speculative_tokens=BLOCK)
    params = SamplingParams(max_tokens=BLOCK, ignore_eos=True)
    draw = torch.Generator().manual_seed(0)
    head = torch.randint(4, 2000, (768,), generator=draw).tolist()

    def first_block(known: list[int]) -> float:
        tail = torch.randint(4, 2000, (800 - len(known),), generator=draw).tolist()
        begin = time.perf_counter()
        llm.generate([[*known, *tail]], params)
        return time.perf_counter() - begin

    new = statistics.median([first_block([]) for _ in range(REPEATS)])
    first_block(head)
    cached = statistics.median([first_block(head) for _ in range(REPEATS)])
    return {"prompt_tokens": 800, "cached_tokens": len(head), "new_seconds": new, "cached_seconds": cached}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = (
        "steps",
        "forwards",
        "draws",
        "batches",
        "methods",
        "windows",
        "plain_loop",
        "long_texts",
        "common_heads",
    )
    parser.add_argument("--page", action="store_true", help="measure nothing")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--questions", type=positive, default=64, help="of the batches")
    parser.add_argument(
        "--method-questions", type=positive, default=12, help="of the methods, the windows, the plain loop"
    )
    parser.add_argument("--repeats", type=positive, default=3, help="of what is repeated")
    parser.add_argument("--threads", type=positive, default=1)
    args = parser.parse_args()
    if not args.page:
        torch.set_num_threads(args.threads)
        data = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else {}
        about = {"simsd": __version__, "torch": torch.__version__, "threads": args.threads, "repeats": args.repeats}
        about["device"] = device_name(torch.device("cpu"))
        if "batches" in args.only:
            about["questions"] = args.questions
        if {"methods", "windows", "plain_loop"} & set(args.only):
            about["method_questions"] = args.method_questions
        data["about"] = data.get("about", {}) | about  # of the parts that stay as they were, what they were made of
        measured = {
            "steps": lambda: steps(args.threads),
            "forwards": forwards,
            "draws": draws,
            "batches": lambda: batches(args.questions, args.repeats),
            "methods": lambda: methods(args.method_questions, args.repeats),
            "windows": lambda: windows(args.method_questions, args.repeats),
            "plain_loop": lambda: plain_loop(args.method_questions, args.repeats),
            "long_texts": long_texts,
            "common_heads": common_heads,
        }
        with torch.inference_mode():
            for part in args.only:
                print(part, flush=True)
                data[part] = measured[part]()
                RESULT.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    write_page()


if __name__ == "__main__":
    main()
