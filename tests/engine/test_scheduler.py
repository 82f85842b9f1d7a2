"""Many sequences side by side: none of them notices the others (method section 6)."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch

from simsd.drafters.model import ModelDrafter
from simsd.drafters.trajectory import Trajectory
from simsd.engine.options import SamplingParams
from simsd.engine.request import Sequence
from simsd.engine.runner import Runner
from simsd.errors import NumericalError
from simsd.models.loader import LoadedModel
from simsd.models.vocabulary import Embedding
from tests.drafting import make_drafter
from tests.tiny import MASK, POSITIONS, Request, as_text, decode, engine, prompt_of, submit, tiny_model

SIZE = 4


def spoken(sequences: list[Sequence]) -> list[tuple[list[int], list[int], str | None]]:
    return [(s.token_ids, s.token_steps, s.finish_reason) for s in sequences]


def crowd() -> list[Request]:
    """Requests that differ in everything, and end at different times."""
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0},
        {"remasking_strategy": "low_confidence_dynamic", "confidence_threshold": 0.3},
        {"temperature": 0.7, "top_k": 4, "denoising_steps": 3},
        {"remasking_strategy": "random"},
        {"remasking_strategy": "entropy_bounded", "eb_threshold": 3.0, "temperature": 1.0, "top_p": 0.8},
        {"remasking_strategy": "sequential", "denoising_steps": 2},
    ]
    lengths, budgets = [3, 8, 17, 1, 12, 30, 5], [18, 3, 9, 21, 1, 12, 6]
    return [
        Request(prompt_of(length, i), SamplingParams(max_tokens=budget, seed=i, logprobs=i % 2 == 0, **kind))
        for i, (length, budget, kind) in enumerate(zip(lengths, budgets, kinds, strict=True))
    ]


MODES: dict[str, dict[str, Any]] = {
    "none": {"method": "none"},
    "exact": {"method": "exact"},
    "exact, short window": {"method": "exact", "num_speculative_tokens": 3},
    "simsd": {"method": "simsd"},
    "simsd, window of a block": {"method": "simsd", "num_speculative_tokens": 4},
    "simsd, long window": {"method": "simsd", "num_speculative_tokens": 9},
    "draft order": {"method": "exact-draft-order"},
    "draft order, window of a block": {"method": "exact-draft-order", "num_speculative_tokens": 4},
    "draft order, long window": {"method": "exact-draft-order", "num_speculative_tokens": 7},
}


def run(requests: list[Request], mode: str, places: int, drafter: str = "model, a look a step") -> list[Sequence]:
    given = None if mode == "none" else make_drafter(drafter, SIZE)
    return decode(engine(tiny_model(), SIZE, given, max_num_seqs=places, **MODES[mode]), requests)


@cache
def alone(mode: str, drafter: str = "model, a look a step") -> list[Sequence]:
    return [run([request], mode, 1, drafter)[0] for request in crowd()]


@pytest.mark.parametrize(
    ("mode", "drafter"),
    [("none", "nothing"), *product(list(MODES)[1:], ["model, a look a step", "hybrid", "self", "lookup"])],
)
def test_a_result_does_not_depend_on_what_else_is_in_the_batch(mode, drafter):
    expected = alone("none") if MODES[mode]["method"] in ("none", "exact") else alone(mode, drafter)
    for places in (2, 3, 16):
        assert spoken(run(crowd(), mode, places, drafter)) == spoken(expected)
    backwards = run(crowd()[::-1], mode, 3, drafter)[::-1]
    assert spoken(backwards) == spoken(expected)


@pytest.mark.parametrize("mode", ["none", "exact", "simsd"])
def test_log_probabilities_do_not_depend_on_the_batch(mode):
    for one, other in zip(run(crowd(), mode, 3), alone(mode), strict=True):
        if one.params.logprobs:
            assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=1e-9)


def test_places_are_filled_again_as_soon_as_they_are_free():
    scheduler = engine(tiny_model(), SIZE, max_num_seqs=2)
    sequences = submit(scheduler, crowd())
    while scheduler.busy:
        free = 2 - len(scheduler.running)
        waited = list(scheduler.waiting)
        scheduler.step()
        assert len(scheduler.running) <= 2
        assert all(one not in scheduler.waiting for one in waited[:free])
    assert all(one.finish_reason == "length" for one in sequences)


def test_the_last_sequence_moves_into_a_free_place_and_goes_on():
    budgets = [1, 30, 30]
    requests = [Request(prompt_of(9, i), SamplingParams(max_tokens=n, seed=i)) for i, n in enumerate(budgets)]
    scheduler = engine(tiny_model(), SIZE, make_drafter("model", SIZE))
    sequences = submit(scheduler, requests)
    while sequences[0].finish_reason is None:
        scheduler.step()
    assert [s.index for s in scheduler.running] == [2, 1]
    while scheduler.busy:
        scheduler.step()
    assert spoken(sequences) == spoken([decode(engine(tiny_model(), SIZE), [r])[0] for r in requests])


def test_sequences_that_come_later_join_the_running_ones():
    expected = [decode(engine(tiny_model(), SIZE), [r])[0] for r in crowd()]
    scheduler = engine(tiny_model(), SIZE, make_drafter("model", SIZE), max_num_seqs=3)
    sequences = []
    for request in crowd():
        sequences += submit(scheduler, [request])
        scheduler.step()
    while scheduler.busy:
        scheduler.step()
    assert spoken(sequences) == spoken(expected)


@pytest.mark.parametrize("when", [0, 1, 4])
def test_a_cancelled_sequence_frees_its_place_and_disturbs_nobody(when):
    expected = alone("none")
    scheduler = engine(tiny_model(), SIZE, make_drafter("model", SIZE), max_num_seqs=2)
    sequences = submit(scheduler, crowd())
    for _ in range(when):
        scheduler.step()
    scheduler.cancel(sequences[0])
    assert sequences[0] not in scheduler.running and sequences[0] not in scheduler.waiting
    scheduler.cancel(sequences[0])  # once more does no harm
    while scheduler.busy:
        scheduler.step()
    assert sequences[0].finish_reason is None
    assert spoken(sequences[1:]) == spoken(expected[1:])


@pytest.mark.parametrize("max_tokens", range(1, 21))
def test_every_max_tokens_is_kept_and_is_a_beginning_of_the_longer_text(max_tokens):
    longest = decode(engine(tiny_model(), SIZE), [Request(prompt_of(6), SamplingParams(max_tokens=24))])[0]
    truth = Trajectory(longest.token_ids, longest.token_steps)
    for name in ("model", "trajectory"):
        scheduler = engine(tiny_model(), SIZE, make_drafter(name, SIZE))
        request = Request(prompt_of(6), SamplingParams(max_tokens=max_tokens), memory={"trajectory": truth})
        found = decode(scheduler, [request])[0]
        assert found.token_ids == longest.token_ids[:max_tokens]
        assert found.finish_reason == "length"
        assert found.stats.tokens == max_tokens


@pytest.mark.parametrize("at", range(14))
def test_a_stop_id_ends_the_text_before_it_wherever_it_stands(at):
    whole = decode(engine(tiny_model(), SIZE), [Request(prompt_of(6), SamplingParams(max_tokens=24))])[0]
    stop = whole.token_ids[at]
    first = whole.token_ids.index(stop)
    for drafter in (None, make_drafter("model, a look a step", SIZE)):
        request = Request(prompt_of(6), SamplingParams(max_tokens=24), frozenset({stop}))
        found = decode(engine(tiny_model(), SIZE, drafter), [request])[0]
        assert found.token_ids == whole.token_ids[:first]
        assert found.token_steps == whole.token_steps[:first]
        assert found.finish_reason == "stop"


def test_a_stop_id_beyond_max_tokens_does_not_count():
    whole = decode(engine(tiny_model(), SIZE), [Request(prompt_of(4), SamplingParams(max_tokens=8))])[0]
    stop = whole.token_ids[3]
    count = whole.token_ids.index(stop)
    request = Request(prompt_of(4), SamplingParams(max_tokens=max(count, 1)), frozenset({stop}))
    found = decode(engine(tiny_model(), SIZE), [request])[0]
    assert found.finish_reason == ("length" if count else "stop")


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("at", range(12))
def test_a_stop_string_ends_the_text_before_it_wherever_it_stands(at, width):
    whole = decode(engine(tiny_model(), SIZE), [Request(prompt_of(6), SamplingParams(max_tokens=24))])[0]
    text = as_text(whole.token_ids)
    stop = text[at : at + width]
    request = Request(prompt_of(6), SamplingParams(max_tokens=24, stop=[stop, "never"]))
    found = decode(engine(tiny_model(), SIZE, make_drafter("trajectory", SIZE)), [request])[0]
    assert as_text(found.token_ids) == text[: text.index(stop)]
    assert found.finish_reason == "stop"
    assert found.stats.tokens == len(found.token_ids)


def poisoned(model: LoadedModel, token: int) -> LoadedModel:
    """The model with one token whose embedding is not a number."""
    broken = copy.copy(model.model)
    broken.embedding = Embedding(model.model.embedding.weight.clone())
    broken.embedding.weight[token] = torch.nan
    return replace(model, model=broken)


@pytest.mark.parametrize("drafter", [None, "model", "self"])
@pytest.mark.parametrize("places", [1, 2, 4])
def test_logits_that_are_not_numbers_fail_alone(places, drafter):
    model = poisoned(tiny_model(), 62)
    good = [Request([t % 62 for t in prompt_of(n, n)], SamplingParams(max_tokens=9)) for n in (3, 21, 6, 14)]
    bad = Request([5] * 26 + [62] * 4, SamplingParams(max_tokens=9))
    expected = [decode(engine(model, SIZE), [request])[0] for request in good]
    assert all(s.finish_reason == "length" for s in expected)
    made = make_drafter(drafter, SIZE) if drafter else None
    found = decode(engine(model, SIZE, made, max_num_seqs=places), [bad, *good[:2], bad, *good[2:]])
    for one in (found.pop(3), found.pop(0)):
        assert one.finish_reason == "error"
        assert isinstance(one.error, NumericalError)
        assert one.token_ids == []
    assert spoken(found) == spoken(expected)


def test_a_draft_that_is_not_a_number_changes_no_text():
    broken = copy.copy(tiny_model(2, 0, 0.02).model)
    broken.embedding = Embedding(torch.full_like(broken.embedding.weight, torch.nan))
    drafter = ModelDrafter(Runner(broken, MASK, SIZE, POSITIONS), SIZE)
    assert spoken(decode(engine(tiny_model(), SIZE, drafter), crowd())) == spoken(alone("none"))
