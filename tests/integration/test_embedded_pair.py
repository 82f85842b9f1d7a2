"""The promises on the embedded pair, in float32, through the public door."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from simsd import LLM, SamplingParams
from simsd.core.states import KINDS
from simsd.engine.options import DRAFTERS
from simsd.evaluation.graders import grade
from simsd.evaluation.suites import load_suite
from tests.pairwise import pairwise

SCHEDULES: dict[str, dict[str, Any]] = {
    "static": {},
    "two a step": {"denoising_steps": 2},
    "uneven": {"denoising_steps": 3},
    "dynamic": {"remasking_strategy": "low_confidence_dynamic", "confidence_threshold": 0.9},
    "sequential": {"remasking_strategy": "sequential"},
    "entropy": {"remasking_strategy": "entropy_bounded", "eb_threshold": 0.2},
    "random": {"remasking_strategy": "random"},
}
SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "warm": {"temperature": 1.0},
    "top-k": {"temperature": 1.5, "top_k": 20},
    "top-p": {"temperature": 1.2, "top_p": 0.9},
}
CASES = pairwise(
    {
        "schedule": tuple(SCHEDULES),
        "sampler": tuple(SAMPLERS),
        "states": (*KINDS, None),
        "size": (4, 8, 16),
        "gamma": ("auto", 3, 12),
        "drafter": DRAFTERS,
    }
)


@cache
def pair() -> LLM:
    return LLM(dtype="float32", device="cpu")


def conversations(skills: tuple[str, ...]) -> list[list[dict[str, str]]]:
    """The first question of each suite; their prompts differ in length."""
    return [[{"role": "user", "content": load_suite(skill, 1)[0].question}] for skill in skills]


@pytest.mark.parametrize("case", CASES, ids=lambda case: ", ".join(str(value) for value in case.values()))
def test_exact_is_ordinary_decoding(case):
    asked = conversations(("math", "chat"))
    params = SamplingParams(max_tokens=18, seed=5, **SCHEDULES[case["schedule"]], **SAMPLERS[case["sampler"]])
    ordinary = pair().with_options(method="none", block_length=case["size"])
    expected = ordinary.chat(asked, params)
    exact = pair().with_options(
        block_length=case["size"],
        states=case["states"],
        num_speculative_tokens=case["gamma"],
        drafter=case["drafter"],
        max_num_seqs=2,
    )
    if case["drafter"] == "trajectory":
        prompts = [exact.tokenizer.apply_chat_template(one) for one in asked]
        found = exact.generate(prompts, params, trajectories=[one.trajectory for one in expected])
    else:
        found = exact.chat(asked, params)
    for mine, other in zip(found, expected, strict=True):
        assert (mine.token_ids, mine.steps) == (other.token_ids, other.steps)
        assert (mine.text, mine.finish_reason) == (other.text, other.finish_reason)


def right_answers(llm: LLM, count: int = 10) -> float:
    questions = load_suite("math", count)
    answers = llm.chat([[{"role": "user", "content": q.question}] for q in questions], SamplingParams(max_tokens=80))
    return sum(grade(q, a.text) for q, a in zip(questions, answers, strict=True)) / count


def test_the_papers_method_needs_its_position_copy():
    paper = pair().with_options(method="simsd")
    assert right_answers(paper) >= 0.6
    assert right_answers(paper.with_options(position_copy=False)) == 0.0


@pytest.mark.parametrize("method", ["simsd", "exact", "exact-draft-order"])
def test_drafts_of_the_small_model_save_forwards(method):
    questions = [[{"role": "user", "content": q.question}] for q in load_suite("math", 3)]
    fixed = pair().with_options(method=method, num_speculative_tokens=8)  # whatever the clock says
    found = fixed.chat(questions, SamplingParams(max_tokens=48))
    tokens, forwards = sum(a.stats.tokens for a in found), sum(a.stats.target_forwards for a in found)
    assert tokens > 1.5 * forwards  # ordinary decoding on the static schedule puts one token a forward


def test_an_answer_is_the_same_in_float64_and_in_float32():
    wide = LLM(dtype="float64", device="cpu")
    params = SamplingParams(max_tokens=24)
    asked = conversations(("math", "trivia"))
    assert [a.token_ids for a in wide.chat(asked, params)] == [a.token_ids for a in pair().chat(asked, params)]
