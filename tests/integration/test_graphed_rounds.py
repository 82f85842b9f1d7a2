"""A recorded round is the round: all methods, drafts and schedules, over batches that change and caches that grow.

Graphs are recorded by the stand-in of `tests/capture.py`; whatever of the host's a recording holds shows in the texts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from simsd.drafters.trajectory import Trajectory
from simsd.engine.auto import Auto
from simsd.engine.costs import CostTable
from simsd.engine.graphs import Graphs
from simsd.engine.options import DecodingOptions, SamplingParams
from simsd.engine.request import Sequence
from simsd.engine.scheduler import Scheduler
from tests.capture import graphs
from tests.drafting import make_drafter
from tests.integration.test_exactness import SAMPLERS, schedule
from tests.pairwise import pairwise
from tests.tiny import Request, decode, engine, prompt_of, tiny_model

FACTORS = {
    "method": ("simsd", "exact", "exact-draft-order"),
    "drafter": ("model", "model, a look a step", "hybrid", "self", "lookup", "trajectory"),
    "schedule": ("one a step", "dynamic", "entropy", "random"),
    "sampler": tuple(SAMPLERS),
    "gamma": ("auto", 3, 8),
    "batch": (1, 2),
    "size": (4, 8),
}
CASES = pairwise(FACTORS)
CASES += [
    CASES[0] | {"method": "none", "drafter": "model", "schedule": name, "batch": 2} for name in FACTORS["schedule"]
]
LAYERS = 1


@pytest.fixture(autouse=True)
def everything_is_recorded(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No function of a round may be one that no graph can hold."""
    with caplog.at_level(logging.WARNING):
        yield
    assert caplog.messages == []


def spoken(sequence: Sequence) -> tuple[Any, ...]:
    return sequence.token_ids, sequence.token_steps, sequence.finish_reason, sequence.stop_token_id


def scheduler(case: dict[str, Any], own: tuple[Graphs, Graphs] | None, **more: Any) -> Scheduler:
    """An engine for the case. own: the graphs of target and draft model; None is without."""
    size, method = case["size"], case["method"]
    target, draft = own or (None, None)
    drafter = None if method == "none" else make_drafter(case["drafter"], size, LAYERS, draft)
    options = {"method": method, "num_speculative_tokens": case["gamma"]}
    named = case["drafter"].split(",")[0]
    adaptive = DecodingOptions(block_length=size, drafter=named, **options).resolve(True).adaptive
    auto = Auto(lambda: CostTable((4, 64), (0.001, 0.002)), size) if adaptive else None
    return engine(tiny_model(LAYERS), size, drafter, **{"auto": auto, "graphs": target} | options | more)


def requests(case: dict[str, Any]) -> list[Request]:
    """Each prompt three times, each time with another seed: shapes are met, recorded and replayed."""
    made = []
    for i in range(3 * case["batch"]):
        again = i % case["batch"]
        how = schedule(case["schedule"], case["size"]) | (SAMPLERS[case["sampler"]] if again == 0 else {})
        made.append(Request(prompt_of(3 + 6 * again, again), SamplingParams(max_tokens=(18, 11)[again], seed=i, **how)))
    return made


@pytest.mark.parametrize("case", CASES, ids=lambda case: ", ".join(str(value) for value in case.values()))
def test_texts_are_those_without_graphs(case):
    asked, size = requests(case), case["size"]
    exact, ordinary = case["method"] in ("none", "exact"), []
    if exact or case["drafter"] == "trajectory":
        ordinary = [decode(engine(tiny_model(LAYERS), size), [one])[0] for one in asked]
        for request, truth in zip(asked, ordinary, strict=True):
            request.memory["trajectory"] = Trajectory(truth.token_ids, truth.token_steps)
    own = graphs(step=64), graphs(step=64)
    graphed = scheduler(case, own, max_num_seqs=case["batch"])
    graphed.target.reserve(case["batch"], 200)  # else it would grow, and forget
    found = decode(graphed, asked)
    expected = ordinary if exact else decode(scheduler(case, None, max_num_seqs=case["batch"]), asked)
    assert [spoken(s) for s in found] == [spoken(s) for s in expected]
    if case["gamma"] != "auto":  # which goes through the windows first
        assert own[0].replays > 0
