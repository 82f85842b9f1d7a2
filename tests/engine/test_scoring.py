"""The likelihood of given text: against a forward for every token, by the laws of probability, and by decoding."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch

from simsd.engine import scoring
from simsd.engine.options import SamplingParams
from simsd.engine.scoring import Score, Scorer
from simsd.errors import NumericalError, PromptError
from tests.models.reference import Reference
from tests.tiny import MASK, POSITIONS, VOCAB, Request, decode, engine, folder_of, prompt_of, runner, tiny_model

TOKENS = [token for token in range(VOCAB) if token != MASK]


def scorer(size: int = 4, limit: int = POSITIONS) -> Scorer:
    return Scorer(runner(tiny_model(), size), limit)


@cache
def reference() -> Reference:
    return Reference(folder_of(2, 0, 0.0), torch.float64)


def slow(context: list[int], continuation: list[int], size: int) -> Score:
    """A forward over all of the text for every single token, by another implementation and without a cache."""
    score = Score()
    for index, token in enumerate(continuation):
        text = context + continuation[:index]
        place = len(text)
        text = text + [MASK] * (size - place % size)
        at = torch.arange(len(text))
        bias = torch.zeros(len(text), len(text), dtype=torch.float64)
        bias.masked_fill_(at[:, None] // size < at[None, :] // size, -math.inf)
        row = reference().logits(torch.tensor([text]), at[None], bias[None, None])[0, place].clone()
        row[MASK] = -math.inf
        score.logprobs.append(float(row.log_softmax(-1)[token]))
        score.greedy.append(int(row.argmax()) == token)
    return score


def assert_same(found: Score, expected: Score) -> None:
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-9)
    assert found.greedy == expected.greedy


@pytest.mark.parametrize("size", [1, 3, 4, 8])
@pytest.mark.parametrize("length", [0, 1, 4, 7, 8, 21])
def test_every_token_has_the_probability_of_its_own_forward(size: int, length: int) -> None:
    context, continuation = prompt_of(length, 1), prompt_of(11, 2)
    assert_same(scorer(size).score(context, [continuation])[0], slow(context, continuation, size))


def test_continuations_that_share_a_beginning_and_part_inside_a_later_block() -> None:
    context, stem = prompt_of(6, 1), prompt_of(5, 2)
    several = [stem + prompt_of(4, 3), stem + prompt_of(7, 4), stem[:2], [], stem, prompt_of(1, 5), stem]
    for found, continuation in zip(scorer().score(context, several), several, strict=True):
        assert_same(found, slow(context, continuation, 4))


@pytest.mark.parametrize("rows", [1, 8, 12, 20, 64])
def test_text_of_any_length_is_scored_in_pieces(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    context, long, short = prompt_of(9, 1), prompt_of(40, 2), prompt_of(3, 3)
    whole = scorer().score(context, [long, short, long[:17]])
    monkeypatch.setattr(scoring, "MOST_ROWS", rows)
    for found, expected in zip(scorer().score(context, [long, short, long[:17]]), whole, strict=True):
        assert_same(found, expected)


def test_a_long_context_is_stored_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    context, continuation = prompt_of(50, 1), prompt_of(6, 2)
    expected = slow(context, continuation, 4)
    monkeypatch.setattr(scoring, "PREFILL_ROWS", 9)
    assert_same(scorer().score(context, [continuation])[0], expected)


def test_what_was_scored_before_changes_nothing() -> None:
    kept, first, second = scorer(), prompt_of(30, 1), prompt_of(30, 1)[:17] + prompt_of(20, 2)
    for context in (first, second, first, first[:3], second[:16]):
        continuation = prompt_of(9, len(context))
        assert_same(kept.score(context, [continuation])[0], slow(context, continuation, 4))


def counted(kept: Scorer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each forward from here on."""
    rows: list[int] = []
    forward = kept.runner.hidden

    def counting(layout: Any, *rest: Any, **more: Any) -> Any:
        rows.append(layout.ids.shape[1])
        return forward(layout, *rest, **more)

    monkeypatch.setattr(kept.runner, "hidden", counting)
    return rows


def test_choices_of_one_token_cost_one_state_and_a_shared_context_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, context = scorer(), prompt_of(23, 1)
    rows = counted(kept, monkeypatch)
    kept.score(context, [[1], [2], [3], [4]])
    kept.score([*context[:21], 7], [[1], [2]])
    assert rows == [20 + 4, 4]


@pytest.mark.parametrize("length", [0, 2, 3, 4])
def test_one_token_continuations_exhaust_all_that_can_follow(length: int) -> None:
    scores = scorer().score(prompt_of(length, 1), [[token] for token in TOKENS])
    assert sum(math.exp(score.total) for score in scores) == pytest.approx(1, abs=1e-12)
    assert sum(score.is_greedy for score in scores) == 1


@pytest.mark.parametrize("length", [0, 2, 3])
def test_two_token_continuations_exhaust_all_that_can_follow(length: int) -> None:
    scores = scorer().score(prompt_of(length, 1), [list(pair) for pair in product(TOKENS, TOKENS)])
    assert sum(math.exp(score.total) for score in scores) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_greedy_is_what_ordinary_sequential_decoding_writes(size: int, seed: int) -> None:
    context = prompt_of(5 + seed, seed)
    params = SamplingParams(max_tokens=11, remasking_strategy="sequential")
    written = decode(engine(tiny_model(), size), [Request(context, params)])[0].token_ids
    assert scorer(size).score(context, [written])[0].greedy == [True] * 11
    for place in range(11):  # one other token, and it is the only one that is not the likeliest
        other = [*written[:place], (written[place] + 1) % MASK]
        assert scorer(size).score(context, [other])[0].greedy == [True] * place + [False]


def test_what_is_too_long_is_refused_and_what_just_fits_is_not() -> None:
    kept = scorer(limit=32)
    assert len(kept.score(prompt_of(20, 1), [prompt_of(12, 2)])[0].logprobs) == 12
    with pytest.raises(PromptError, match="33 tokens together, but at most 32"):
        kept.score(prompt_of(20, 1), [[1], prompt_of(13, 2)])


def test_logits_that_are_not_numbers_fail_and_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, context, continuation = scorer(), prompt_of(9, 1), prompt_of(6, 2)
    head: Callable[[Any], Any] = kept.runner.model.head
    with monkeypatch.context() as broken:
        broken.setattr(kept.runner.model, "head", lambda hidden: head(hidden) * math.nan)
        with pytest.raises(NumericalError, match="not numbers behind position 9"):
            kept.score(context, [continuation])
    assert_same(kept.score(context, [continuation])[0], slow(context, continuation, 4))


def test_nothing_to_score_is_certain() -> None:
    assert scorer().score(prompt_of(5, 1), []) == []
    nothing = scorer().score(prompt_of(5, 1), [[]])[0]
    assert (nothing.total, nothing.is_greedy) == (0, True)
