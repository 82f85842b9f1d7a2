from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simsd.benchmark import measure as measured
from simsd.benchmark.cell import Cell, matrix
from simsd.benchmark.journal import Journal
from simsd.benchmark.measure import Settings, groups, measure, places
from simsd.benchmark.summary import summarise
from simsd.benchmark.workload import Item
from simsd.errors import ConfigError, PromptError
from simsd.llm import LLM

SETTINGS = Settings(max_tokens=12, repeats=2)
Calls = list[tuple[str, tuple[Any, ...]]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What was asked: method and prompts, the warm-up included."""
    found: Calls = []
    real = measured.ask

    def ask(llm: LLM, items: Sequence[Item], params: Any) -> Any:
        found.append((f"{llm.options.method} {llm.options.remasking_strategy}", tuple(str(i.prompt) for i in items)))
        return real(llm, items, params)

    monkeypatch.setattr(measured, "ask", ask)
    return found


def stop_after(samples: int) -> Callable[[int], None]:
    """An `advance` that is interrupted like a run by Ctrl-C."""
    left = [samples]

    def advance(n: int) -> None:
        left[0] -= n
        if left[0] == 0:
            raise KeyboardInterrupt

    return advance


@pytest.mark.parametrize("batch_size", [1, 2])
def test_every_cell_decodes_a_prompt_before_the_next_one(
    pair: LLM, two_questions: list[Item], calls: Calls, batch_size: int
) -> None:
    cells = matrix(["exact"])
    settings = Settings(max_tokens=12, repeats=2, batch_size=batch_size)
    journal = Journal(None, {})
    done = []
    measure(pair, cells, two_questions, settings, journal, done.append)
    assert sum(done) == len(places(cells, two_questions, settings)) == len(journal.samples)
    timed = calls[len(cells) :]  # after the warm-up
    turns = [timed[at : at + len(cells)] for at in range(0, len(timed), len(cells))]
    assert len(turns) == 2 * len(groups(2, batch_size))
    for turn in turns:
        assert len({prompts for _, prompts in turn}) == 1
        assert len({method for method, _ in turn}) == len(cells)
    # each cell begins in turn
    assert len({turn[0][0] for turn in turns}) == min(len(turns), len(cells))
    assert {len(prompts) for _, prompts in calls} == {batch_size}


def test_the_warm_up_takes_the_longest_prompts_and_counts_nothing(pair: LLM, calls: Calls) -> None:
    items = [Item("short"), Item("a much longer prompt than the others"), Item("longer now")]
    journal = Journal(None, {})
    measure(pair, [Cell("none")], items, Settings(max_tokens=4, repeats=1), journal)
    assert [prompts for _, prompts in calls] == [
        ("a much longer prompt than the others",),
        ("short",),
        ("a much longer prompt than the others",),
        ("longer now",),
    ]
    assert len(journal.samples) == 3


def test_tokens_are_counted_from_the_ids_and_rounds_once(pair: LLM, two_questions: list[Item]) -> None:
    journals = {size: Journal(None, {}) for size in (1, 2)}
    cells = [Cell("none"), Cell("exact")]
    for size, journal in journals.items():
        settings = Settings(max_tokens=12, repeats=1, batch_size=size)
        measure(pair, cells, two_questions, settings, journal)
    texts = {
        size: {cell.key: [a.text for s in journal.samples if s.cell == cell.key for a in s.answers] for cell in cells}
        for size, journal in journals.items()
    }
    assert texts[1] == texts[2]
    assert texts[1][cells[0].key] == texts[1][cells[1].key]
    for sample in (s for journal in journals.values() for s in journal.samples):
        assert all(0 < answer.tokens <= 12 for answer in sample.answers)
        assert sample.cost["rounds"] == sample.cost["target_forwards"]
        parts = sum(sample.cost[f"{part}_seconds"] for part in ("prefill", "draft", "verify", "accept"))
        assert 0 < parts <= sample.cost["seconds"]
        assert sample.peak_bytes > 0
    alone, together = ([s for s in j.samples if s.cell == cells[0].key] for j in journals.values())
    assert together[0].cost["rounds"] < sum(s.cost["rounds"] for s in alone)  # a round serves both


def test_a_run_that_was_interrupted_measures_only_what_is_missing(
    pair: LLM, two_questions: list[Item], calls: Calls, tmp_path: Path
) -> None:
    window = {"num_speculative_tokens": 4}  # one of its own would follow the clock
    cells = matrix(["simsd", "exact"], schedules=["low_confidence_static"], fixed=window)
    total = len(places(cells, two_questions, SETTINGS))
    path = tmp_path / "run.jsonl"
    with pytest.raises(KeyboardInterrupt), Journal(path, {}) as first:
        measure(pair, cells, two_questions, SETTINGS, first, stop_after(5))
    calls.clear()
    journal = Journal(path, {})
    assert len(journal.samples) == 5
    done = []
    measure(pair, cells, two_questions, SETTINGS, journal, done.append)
    assert len(calls) == len(cells) + total - 5  # warm-ups, and the rest
    assert sum(done) == total

    whole = Journal(None, {})
    measure(pair, cells, two_questions, SETTINGS, whole)
    resumed, fresh = (summarise(cells, j.samples, 2) for j in (journal, whole))
    for name in ("tokens", "tokens_per_forward", "query_tokens", "acceptance_rate", "accuracy", "same_text", "lost"):
        assert [getattr(row, name) for row in resumed] == [getattr(row, name) for row in fresh], name
    calls.clear()
    journal.close()
    measure(pair, cells, two_questions, SETTINGS, Journal(path, {}))
    assert calls == []  # nothing is missing, so nothing is warmed up


def test_exact_cells_repeat_sampled_text_and_repeats_differ(pair: LLM, two_questions: list[Item]) -> None:
    cells = matrix(["exact"], temperatures=[2.0], schedules=["low_confidence_static"])
    journal = Journal(None, {})
    measure(pair, cells, two_questions, SETTINGS, journal)
    rows = {row.cell: row for row in summarise(cells, journal.samples, 2)}
    assert rows[cells[-1]].same_text == rows[cells[0]].same_text == 1.0
    texts = [answer.text for s in journal.samples if s.cell == cells[0].key for answer in s.answers]
    assert len(set(texts)) == 4


def test_a_text_is_graded_once(pair: LLM, two_questions: list[Item], monkeypatch: pytest.MonkeyPatch) -> None:
    graded = []
    monkeypatch.setattr(measured, "grade", lambda question, text: bool(graded.append((question, text))))
    journal = Journal(None, {})
    measure(pair, [Cell("none"), Cell("exact")], [*two_questions, Item("no question")], SETTINGS, journal)
    assert len(graded) == len(set(graded)) == 2
    marks = {answer.right for sample in journal.samples for answer in sample.answers}
    assert marks == {False, None}


def test_a_bad_prompt_is_told_before_anything_is_measured(pair: LLM, calls: Calls) -> None:
    items = [Item("fine"), Item("word " * pair.max_model_len, source="long")]
    with pytest.raises(PromptError, match=r"prompt 2 \(long\)"):
        measure(pair, [Cell("none")], items, SETTINGS, Journal(None, {}))
    assert calls == []


def test_the_last_batch_may_be_smaller_than_the_others() -> None:
    assert groups(3, 1) == [range(1), range(1, 2), range(2, 3)]
    assert groups(3, 2) == [range(3)]  # one call, whose places are refilled


@pytest.mark.parametrize(("name", "value"), [("max_tokens", 0), ("repeats", 0), ("batch_size", -1), ("seed", -1)])
def test_settings_that_measure_nothing_are_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value}"):
        replace(Settings(), **{name: value})


def test_all_cells_have_the_seed_of_a_prompt_and_every_repeat_another() -> None:
    settings = Settings(seed=5, top_k=3, top_p=0.5, ignore_eos=True)
    cells = matrix(["exact"], temperatures=[1.0])
    seeds = {
        (repeat, index): {settings.params(c, repeat, index).seed for c in cells}
        for repeat in (0, 1)
        for index in (0, 1)
    }
    assert all(len(found) == 1 for found in seeds.values())
    assert len(set.union(*seeds.values())) == 4
    params = settings.params(cells[0], 0, 0)
    assert (params.temperature, params.top_k, params.top_p, params.ignore_eos) == (1.0, 3, 0.5, True)
