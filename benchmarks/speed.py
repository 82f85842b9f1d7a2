"""Times the embedded pair: the target's forward by query tokens, and every way to decode.

    python benchmarks/speed.py --out benchmarks/speed.json

Batch 1. Threads and dtypes are taken in turn; inside one of them all methods decode a question before any decodes the
next one, so that whatever else the machine does falls on all of them alike. Compare ratios, not absolute figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from simsd import LLM, SamplingParams, __version__
from simsd.core.layout import block_causal
from simsd.engine.runner import Runner
from simsd.evaluation.suites import load_suite, messages
from simsd.models.loader import load

ROWS = (4, 8, 16, 40, 100)
PREFIX = 200
STATIC, DYNAMIC = "low_confidence_static", "low_confidence_dynamic"
SUITES = ("math", "code", "choice", "chat")


@dataclass(frozen=True)
class Mode:
    """One way to decode; the options are those of `LLM`."""

    method: str
    schedule: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return " ".join([self.method, *(f"{key}={value}" for key, value in self.options)])


MODES = (
    Mode("none", STATIC),
    Mode("simsd", STATIC),
    Mode("exact-draft-order", STATIC),
    Mode("exact", STATIC),
    Mode("exact", STATIC, (("states", "chain"),)),
    Mode("exact", STATIC, (("states", "swaps"),)),
    Mode("exact", STATIC, (("states", "subsets"),)),
    Mode("exact", STATIC, (("drafter", "self"),)),
    Mode("none", DYNAMIC),
    Mode("simsd", DYNAMIC),
    Mode("exact-draft-order", DYNAMIC),
    Mode("exact", DYNAMIC),
    Mode("exact", DYNAMIC, (("num_speculative_tokens", 4),)),
    Mode("exact", DYNAMIC, (("drafter", "self"),)),
)


@torch.inference_mode()
def forward_times(dtype: str, repeats: int) -> dict[str, float]:
    """Microseconds of one target forward, head included, by query tokens; medians."""
    loaded = load("tiny", dtype, "cpu")
    assert loaded.config.mask_token_id is not None
    runner = Runner(loaded.model, loaded.config.mask_token_id, 4, loaded.config.max_position_embeddings)
    runner.prefill(0, [5] * PREFIX)
    times: dict[str, float] = {}
    for rows in ROWS:
        layout = block_causal(torch.full((1, rows), 5), torch.tensor([PREFIX]), 4)
        layout = type(layout)(layout.ids, layout.positions, layout.mask, torch.arange(rows)[None], layout.skip)
        taken = []
        for _ in range(repeats + 10):
            begin = time.perf_counter()
            runner.logits(layout, [PREFIX], [0])
            taken.append(time.perf_counter() - begin)
        times[str(rows)] = round(statistics.median(taken[10:]) * 1e6)
    return times


def decode_modes(dtype: str, questions: int, max_tokens: int) -> list[dict[str, Any]]:
    """Tokens per target forward, tokens per second (prefill apart) and agreement of every mode."""
    base = LLM(method="none", dtype=dtype, device="cpu")
    llms = {
        mode: base.with_options(method=mode.method, remasking_strategy=mode.schedule, **dict(mode.options))
        for mode in MODES
    }
    asked = [messages(q) for suite in SUITES for q in load_suite(suite, questions)]
    params = SamplingParams(max_tokens=max_tokens)
    done: dict[Mode, list[Any]] = {mode: [] for mode in MODES}
    for at, question in enumerate([*asked[:: max(1, questions)], *asked]):
        warm = at < len(SUITES)
        for mode, llm in llms.items():
            answer = llm.chat(question, params)[0]
            if not warm:
                done[mode].append(answer)
    rows = [_row(mode, done[mode], done[Mode("none", mode.schedule)]) for mode in MODES]
    ordinary = {row["schedule"]: row["tokens_per_second"] for row in rows if row["mode"] == "none"}
    for row in rows:
        row["ratio_to_static"] = round(row["tokens_per_second"] / ordinary[STATIC], 3)
        row["ratio_to_same_schedule"] = round(row["tokens_per_second"] / ordinary[row["schedule"]], 3)
    return rows


def _row(mode: Mode, answers: list[Any], ordinary: list[Any]) -> dict[str, Any]:
    def total(name: str) -> float:
        return sum(getattr(answer.stats, name) for answer in answers)

    forwards = total("target_forwards")
    seconds = {part: total(f"{part}_seconds") for part in ("draft", "verify", "accept")}
    drafted = total("drafted_tokens")
    return {
        "mode": mode.name,
        "schedule": mode.schedule,
        "tokens_per_forward": round(total("tokens") / forwards, 3),
        "query_tokens_per_forward": round(total("query_tokens") / forwards, 1),
        "acceptance_rate": round(total("accepted_tokens") / drafted, 3) if drafted else None,
        "tokens_per_second": round(total("tokens") / sum(seconds.values()), 1),
        "ms_per_round": {part: round(value / forwards * 1e3, 3) for part, value in seconds.items()},
        "same_text": round(
            sum(a.token_ids == b.token_ids for a, b in zip(answers, ordinary, strict=True)) / len(answers), 3
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    parser.add_argument("--questions", type=int, default=10, help="questions of each suite")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=100, help="forwards timed for each number of query tokens")
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, os.cpu_count() or 1}))
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    args = parser.parse_args()
    result: dict[str, Any] = {
        "simsd": __version__,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "block_length": 4,
        "questions": args.questions * len(SUITES),
        "runs": [],
    }
    for threads in args.threads:
        torch.set_num_threads(threads)
        for dtype in args.dtypes:
            run = {"threads": threads, "dtype": dtype, "forward_microseconds": forward_times(dtype, args.repeats)}
            print(f"\n{threads} thread(s), {dtype}: microseconds a forward", run["forward_microseconds"], flush=True)
            run["modes"] = decode_modes(dtype, args.questions, args.max_tokens)
            for row in run["modes"]:
                print(
                    f"{row['schedule'][15:]:8} {row['mode']:32} {row['tokens_per_forward']:6.2f} tok/fwd "
                    f"{row['query_tokens_per_forward']:6.1f} rows {row['tokens_per_second']:7.0f} tok/s "
                    f"{row['ratio_to_static']:5.2f}x static {row['ratio_to_same_schedule']:5.2f}x same "
                    f"text {row['same_text']:.2f}",
                    flush=True,
                )
            result["runs"].append(run)
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
