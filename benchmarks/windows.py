"""The automatic window of `exact` beside fixed ones, drafts that are always right and ordinary decoding, by dtype.

They take turns question by question: a machine whose own speed changes from one minute to the next is the same for all.
"""

from __future__ import annotations

import json
import time
from typing import Any

from benchmarks.batches import SCHEDULES, first_items, ratio
from benchmarks.timing import BLOCK
from simsd import LLM, SamplingParams
from simsd.benchmark.workload import prompt_of
from simsd.drafters.trajectory import Trajectory

FIXED = (2, 4, 6, 8)
RIGHT = (4, 8, 16)  # windows of drafts that cost nothing and are ordinary decoding's own: more, no draft can give


def windows(questions: int, repeats: int) -> list[dict[str, Any]]:
    """One sequence, greedy, B = 4, prefill included: speed relative to ordinary decoding, a ratio a repeat."""
    items = first_items(questions)
    found = []
    for dtype in ("float32", "bfloat16"):
        base = LLM(method="none", device="cpu", dtype=dtype, block_length=BLOCK, prefix_caching=False)
        ways = {"none": base, "auto": base.with_options(method="exact")}
        ways |= {str(n): base.with_options(method="exact", num_speculative_tokens=n) for n in FIXED}
        chain = base.with_options(method="exact", drafter="trajectory", states="chain")
        ways |= {f"right, {n}": chain.with_options(num_speculative_tokens=n) for n in RIGHT}
        prompts = [prompt_of(base.tokenizer, item) for item in items]
        for schedule in SCHEDULES:
            params = SamplingParams(max_tokens=128, remasking_strategy=schedule)
            right = [answer.trajectory for answer in base.generate(prompts, params)]
            seconds = {way: [0.0] * repeats for way in ways}
            for repeat in range(-1, repeats):  # the first one for what is measured, compiled and allocated once
                for place, prompt in enumerate(prompts):
                    turn = (place + repeat) % len(ways)
                    for way in [*ways][turn:] + [*ways][:turn]:
                        own = right[place] if way.startswith("right") else None
                        taken = _seconds(ways[way], prompt, params, own)
                        if repeat >= 0:
                            seconds[way][repeat] += taken
            for way in ways:
                if way != "none":
                    spread = ratio(seconds["none"], seconds[way])
                    found.append({"dtype": dtype, "schedule": schedule, "window": way, "ratio": vars(spread)})
                    print(json.dumps(found[-1]), flush=True)
    return found


def _seconds(llm: LLM, prompt: str | list[int], params: SamplingParams, right: Trajectory | None) -> float:
    begin = time.perf_counter()
    llm.generate([prompt], params, trajectories=None if right is None else [right])
    return time.perf_counter() - begin
