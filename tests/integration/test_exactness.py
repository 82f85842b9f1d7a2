"""Method `exact` is ordinary decoding, token for token and step for step, whatever is drafted (method section 5)."""

from __future__ import annotations

from typing import Any

import pytest

from simsd.core.states import KINDS
from simsd.drafters.trajectory import Trajectory
from simsd.engine.options import SamplingParams
from simsd.engine.request import Sequence
from tests.drafting import DRAFTERS, make_drafter
from tests.pairwise import pairwise
from tests.tiny import Request, decode, engine, prompt_of, tiny_model

SCHEDULES = ("one a step", "two a step", "uneven", "all at once", "dynamic", "sequential", "entropy", "random")
SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "warm": {"temperature": 1.0},
    "top-k": {"temperature": 1.0, "top_k": 3},
    "top-p": {"temperature": 0.8, "top_p": 0.7},
}
FACTORS = {
    "drafter": DRAFTERS,
    "gamma": ("auto", 1, 2, 3, 5, 7, 8, 11, 16),
    "schedule": SCHEDULES,
    "sampler": tuple(SAMPLERS),
    "size": (4, 8, 16),
    "states": KINDS,
    "layers": (2, 4),
    "batch": (1, 4),
}


def schedule(name: str, size: int) -> dict[str, Any]:
    return {
        "one a step": {"denoising_steps": size},
        "two a step": {"denoising_steps": size // 2},
        "uneven": {"denoising_steps": size - size // 4},
        "all at once": {"denoising_steps": 1},
        "dynamic": {"remasking_strategy": "low_confidence_dynamic", "confidence_threshold": 0.35},
        "sequential": {"remasking_strategy": "sequential", "denoising_steps": size // 2},
        "entropy": {"remasking_strategy": "entropy_bounded", "eb_threshold": 4.0},
        "random": {"remasking_strategy": "random", "denoising_steps": size - 1},
    }[name]


def requests(case: dict[str, Any]) -> list[Request]:
    """The case's own request first; the others differ in length, schedule, sampler and seed."""
    size, samplers = case["size"], list(SAMPLERS)
    long = 2 * size + 3 if size < 16 else size + 8
    first_schedule, first_sampler = SCHEDULES.index(case["schedule"]), samplers.index(case["sampler"])
    made = []
    for i in range(case["batch"]):
        params = SamplingParams(
            max_tokens=(long, 5, size)[i % 3],
            seed=i,
            **schedule(SCHEDULES[(first_schedule + i) % len(SCHEDULES)], size),
            **SAMPLERS[samplers[(first_sampler + i) % len(samplers)]],
        )
        made.append(Request(prompt_of((size + 3, 2, size, 3 * size - 1)[i], i), params))
    return made


def spoken(sequence: Sequence) -> tuple[list[int], list[int], str | None]:
    return sequence.token_ids, sequence.token_steps, sequence.finish_reason


CASES = pairwise(FACTORS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: ", ".join(str(value) for value in case.values()))
def test_exact_is_ordinary_decoding(case):
    target = tiny_model(case["layers"])
    asked = requests(case)
    expected = [decode(engine(target, case["size"]), [one])[0] for one in asked]  # each by itself
    for request, truth in zip(asked, expected, strict=True):
        request.memory["trajectory"] = Trajectory(truth.text_ids[len(request.prompt) :], _all_steps(truth))
    drafter = make_drafter(case["drafter"], case["size"], case["layers"])
    options = {"states": case["states"], "num_speculative_tokens": case["gamma"]}
    found = decode(engine(target, case["size"], drafter, max_num_seqs=2, **options), asked)
    assert [spoken(s) for s in found] == [spoken(s) for s in expected]
    stats = [s.stats for s in found]
    # a window shorter than a step cuts it, and half a step is a state that the target never meets
    if case["drafter"] == "trajectory" and (case["gamma"] == "auto" or case["gamma"] >= case["size"]):
        assert all(s.acceptance_rate == 1.0 for s in stats)
    if case["drafter"] == "wrong tokens":
        assert sum(s.accepted_tokens for s in stats) == 0
        assert all(s.drafted_tokens > 0 for s in stats)


def _all_steps(truth: Sequence) -> list[int]:
    return truth.steps[len(truth.prompt_ids) - truth.first_block :]


def test_the_cases_hold_every_pair():
    for a in FACTORS:
        for b in FACTORS:
            if a < b:
                met = {(case[a], case[b]) for case in CASES}
                assert len(met) == len(FACTORS[a]) * len(FACTORS[b])
