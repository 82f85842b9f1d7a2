"""How prompts reach the cache beside running sequences: what others have of them is not computed again, and a long one
comes in pieces. No text depends on it (float64)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from simsd.engine.options import SamplingParams
from simsd.engine.request import Sequence
from simsd.engine.scheduler import Scheduler
from simsd.models.cache import KVCache
from tests.drafting import make_drafter
from tests.tiny import Request, decode, engine, prompt_of, submit, tiny_model

SIZE = 4
HEAD = prompt_of(41, 100)

MODES: dict[str, dict[str, Any]] = {
    "none": {"method": "none"},
    "exact": {"method": "exact", "num_speculative_tokens": 6},
    "simsd": {"method": "simsd", "num_speculative_tokens": 6},
    "draft order": {"method": "exact-draft-order", "num_speculative_tokens": 6},
}


def made(mode: str, places: int = 16) -> Scheduler:
    drafter = None if mode == "none" else make_drafter("model, a look a step", SIZE)
    return engine(tiny_model(), SIZE, drafter, max_num_seqs=places, **MODES[mode])


def spoken(sequences: list[Sequence]) -> list[tuple[list[int], list[int], str | None]]:
    return [(s.token_ids, s.token_steps, s.finish_reason) for s in sequences]


def family() -> list[Request]:
    """Requests under one head, of different lengths, greedy and sampled."""
    lengths, budgets = [7, 0, 12, 3, 20, 1, 9], [9, 17, 1, 12, 5, 22, 8]
    return [
        Request(HEAD + prompt_of(length, i), SamplingParams(max_tokens=budget, seed=i, temperature=float(i % 2)))
        for i, (length, budget) in enumerate(zip(lengths, budgets, strict=True))
    ]


def interrupted_at(number: int, patch: pytest.MonkeyPatch) -> None:
    """Ctrl-C once a cache has been changed so many times, before that is noted."""
    calls = count(1)

    def interrupted(change: Callable[..., None]) -> Callable[..., None]:
        def changed(*arguments: Any) -> None:
            change(*arguments)
            if next(calls) == number:
                raise KeyboardInterrupt

        return changed

    for method in (KVCache.copy, KVCache.swap, KVCache.clear):
        patch.setattr(KVCache, method.__name__, interrupted(method))


@pytest.mark.parametrize("mode", ["none", "exact"])
def test_no_text_is_taken_over_from_where_an_interruption_left_another(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = spoken(decode(made(mode), family()))
    scheduler = made(mode, 3)
    for number in (1, 2, 5, 9):
        requests = submit(scheduler, family())
        with monkeypatch.context() as patch:
            interrupted_at(number, patch)
            with pytest.raises(KeyboardInterrupt):
                run(scheduler)
        for sequence in requests:
            scheduler.cancel(sequence)
        assert spoken(decode(scheduler, family())) == expected


def run(scheduler: Scheduler) -> None:
    while scheduler.busy:
        scheduler.step()


@pytest.mark.parametrize("places", [1, 2, 3, 16])
@pytest.mark.parametrize("mode", MODES)
def test_a_common_head_is_computed_once_and_no_text_depends_on_it(mode: str, places: int) -> None:
    expected = [decode(made(mode), [request])[0] for request in family()]
    scheduler = made(mode, places)
    found = decode(scheduler, family())
    assert spoken(found) == spoken(expected)
    head = len(HEAD) // SIZE * SIZE
    assert [s.stats.cached_tokens >= head for s in found] == [False] + [True] * 6
    for sequence in found:
        whole = len(sequence.prompt_ids) // SIZE * SIZE
        assert sequence.stats.prefill_tokens + sequence.stats.cached_tokens == whole
    assert scheduler.totals.cached_tokens == sum(s.stats.cached_tokens for s in found)


@pytest.mark.parametrize("mode", MODES)
def test_the_next_turn_of_a_conversation_begins_with_the_decoded_answer(mode: str) -> None:
    scheduler = made(mode, 2)
    text, before = prompt_of(10, 1), 0
    stranger = Request(prompt_of(30, 2), SamplingParams(max_tokens=40))
    others = submit(scheduler, [stranger])
    for turn in range(3):
        asked = Request(text, SamplingParams(max_tokens=14, seed=turn, temperature=float(turn % 2)))
        (sequence,) = submit(scheduler, [asked])
        while sequence.finish_reason is None:
            scheduler.step()
        assert spoken([sequence]) == spoken(decode(made(mode), [asked]))
        if turn:
            assert sequence.stats.cached_tokens >= before // SIZE * SIZE > 0
        before = len(text) + len(sequence.token_ids) - 2 * SIZE  # the last blocks are stored when more is decoded
        text = text + sequence.token_ids + prompt_of(5, 10 + turn)
    while scheduler.busy:
        scheduler.step()
    assert spoken(others) == spoken(decode(made(mode), [stranger]))


@pytest.mark.parametrize("mode", MODES)
def test_what_begins_with_the_text_of_a_running_sequence_is_answered_the_same(mode: str) -> None:
    """At whatever moment it comes: the newest blocks of such a text are not stored yet."""
    for rounds in range(1, 20):
        scheduler = made(mode, 2)
        running = submit(scheduler, [Request(HEAD[:9], SamplingParams(max_tokens=40))])[0]
        for _ in range(rounds):
            scheduler.step()
        asked = Request(running.text_ids + prompt_of(3, 5), SamplingParams(max_tokens=8, seed=1))
        assert spoken(decode(scheduler, [asked])) == spoken(decode(made(mode, 2), [asked])), rounds


@pytest.mark.parametrize("mode", MODES)
def test_a_long_prompt_comes_in_pieces_while_the_others_go_on(mode: str) -> None:
    scheduler = made(mode, 3)
    scheduler.target.piece = 8
    short = Request(prompt_of(6, 1), SamplingParams(max_tokens=60))
    long = Request(prompt_of(50, 2), SamplingParams(max_tokens=9))
    (first,) = submit(scheduler, [short])
    scheduler.step()
    (second,) = submit(scheduler, [long])
    for done in range(1, 7):
        before = first.stats.rounds
        scheduler.step()
        assert first.stats.rounds == before + 1 or first.finish_reason
        assert second.stored >= 8 * done
        assert (second in scheduler.running) == (done == 6)
    while scheduler.busy:
        scheduler.step()
    assert spoken([first, second]) == spoken([decode(made(mode), [request])[0] for request in (short, long)])


def test_with_nobody_to_wait_a_long_prompt_is_taken_at_once() -> None:
    scheduler = made("none")
    scheduler.target.piece = 8
    (sequence,) = submit(scheduler, [Request(prompt_of(50), SamplingParams(max_tokens=9))])
    scheduler.step()
    assert sequence.stats.rounds == 1


@pytest.mark.parametrize("cancelled", ["filling", "running"])
@pytest.mark.parametrize("mode", MODES)
def test_places_are_right_when_one_leaves_while_another_is_filled(mode: str, cancelled: str) -> None:
    scheduler = made(mode, 3)
    scheduler.target.piece = 8
    requests = [Request(prompt_of(6 + 4 * i, i), SamplingParams(max_tokens=30)) for i in range(2)]
    long = Request(prompt_of(50, 2), SamplingParams(max_tokens=9))
    running = submit(scheduler, requests)
    scheduler.step()
    (filling,) = submit(scheduler, [long])
    scheduler.step()
    assert filling.stored == 8 and filling not in scheduler.running
    left = filling if cancelled == "filling" else running[0]
    scheduler.cancel(left)
    scheduler.cancel(left)  # once more does no harm
    (later,) = submit(scheduler, [long])
    while scheduler.busy:
        scheduler.step()
    rest = [(s, r) for s, r in zip([*running, filling, later], [*requests, long, long], strict=True) if s is not left]
    assert spoken([s for s, _ in rest]) == spoken([decode(made(mode), [r])[0] for _, r in rest])
    assert left.finish_reason is None
