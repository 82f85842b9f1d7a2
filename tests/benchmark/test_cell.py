from __future__ import annotations

from itertools import groupby

import pytest

from simsd.benchmark.cell import SCHEDULES, Cell, check, labels, matrix, shared, with_baselines
from simsd.errors import ConfigError
from tests.benchmark.support import DYNAMIC, STATIC


@pytest.mark.parametrize("methods", [["exact"], ["none", "simsd"], ["exact", "exact", "none"]])
@pytest.mark.parametrize("schedules", [[STATIC], [DYNAMIC], ["sequential"], [STATIC, DYNAMIC]])
def test_both_baselines_are_always_there(methods: list[str], schedules: list[str]) -> None:
    cells = matrix(methods, schedules=schedules, block_lengths=[4, 8], temperatures=[0.0, 1.0])
    assert len(set(cells)) == len(cells)
    for cell in cells:
        assert {cell.static, cell.baseline, cell.ordinary(DYNAMIC)} <= set(cells)
        assert (cell.static.method, cell.static.schedule) == ("none", STATIC)
        assert cell.static.place[1:] == cell.place[1:]


def test_all_combinations_each_once() -> None:
    cells = matrix(
        ["none", "simsd", "exact"],
        block_lengths=[4, 8],
        temperatures=[0.0, 0.5],
        vary={"num_speculative_tokens": [None, 4, 4], "drafter": ["self", "lookup"]},
    )
    places, drafting = 2 * 2 * 2, 2 * 2 * 2  # schedules, lengths, temperatures; methods, windows, drafters
    assert len(cells) == places * (1 + drafting)


def test_places_stand_together_and_begin_with_ordinary_decoding() -> None:
    cells = matrix(["exact", "none", "simsd"], block_lengths=[4, 8], schedules=[DYNAMIC, "sequential"])
    groups = [(place, list(found)) for place, found in groupby(cells, key=lambda cell: cell.place)]
    assert len(groups) == len(dict(groups)) == 6
    assert all(found[0].method == "none" for _, found in groups)
    assert [place[1] for place, _ in groups] == [4, 4, 4, 8, 8, 8]


def test_options_that_mean_nothing_are_dropped() -> None:
    options = {"num_speculative_tokens": 4, "confidence_threshold": 0.7, "eb_threshold": 0.2, "draft_steps": None}
    assert Cell.of("none", STATIC, options).options == ()
    assert dict(Cell.of("exact", STATIC, options).options) == {"num_speculative_tokens": 4}
    assert dict(Cell.of("none", DYNAMIC, options).options) == {"confidence_threshold": 0.7}
    assert dict(Cell.of("none", "entropy_bounded", options).options) == {"eb_threshold": 0.2}


def test_what_holds_for_all_is_not_in_the_labels() -> None:
    cells = matrix(
        ["exact", "simsd"],
        vary={"num_speculative_tokens": [None, 4]},
        fixed={"draft_steps": 2, "denoising_steps": 2, "confidence_threshold": 0.8},
    )
    assert shared(cells) == {"draft_steps": 2, "denoising_steps": 2, "confidence_threshold": 0.8}
    names = labels(cells)
    assert {names[cell] for cell in cells} == {"none", "exact", "exact window=4", "simsd", "simsd window=4"}
    for _, found in groupby(cells, key=lambda cell: cell.place):
        here = [names[cell] for cell in found]
        assert len(set(here)) == len(here)


def test_equal_cells_and_only_they_have_equal_keys() -> None:
    cells = matrix(
        ["none", "simsd", "exact"],
        block_lengths=[None, 4],
        temperatures=[0.0, 1.0],
        vary={"drafter": [None, "self"], "position_copy": [True, False]},
    )
    assert len({cell.key for cell in cells}) == len(cells)
    assert Cell.of("exact", STATIC, {"a": 1, "b": 2}).key == Cell.of("exact", STATIC, {"b": 2, "a": 1}).key


def test_short_names_of_the_common_schedules() -> None:
    assert [Cell("none", name).schedule_name for name in (*SCHEDULES.values(), "random")] == [
        "static", "dynamic", "random",
    ]  # fmt: skip
    assert Cell("none", STATIC, 8, 0.5).place_name == "static, B = 8, T = 0.5"


def test_baselines_keep_the_options_that_concern_them() -> None:
    cell = Cell.of("exact", DYNAMIC, {"confidence_threshold": 0.7, "drafter": "self", "denoising_steps": 2})
    static, dynamic, own = with_baselines([cell])
    assert dict(static.options) == {"denoising_steps": 2}
    assert dict(dynamic.options) == {"denoising_steps": 2, "confidence_threshold": 0.7}
    assert own == cell


@pytest.mark.parametrize("schedules", [[STATIC], [STATIC, DYNAMIC]])
def test_the_dynamic_baseline_has_the_threshold_of_all(schedules: list[str]) -> None:
    cells = matrix(["exact"], schedules=schedules, fixed={"confidence_threshold": 0.7})
    (found,) = [cell for cell in cells if cell.method == "none" and cell.schedule == DYNAMIC]
    assert dict(found.options) == {"confidence_threshold": 0.7}


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (Cell("exacd"), "exacd"),
        (Cell("exact", "statik"), "statik"),
        (Cell("exact", options=(("windows", 4),)), "windows"),
        (Cell("simsd", options=(("acceptance", "replay"),)), "replay"),
        (Cell("exact-draft-order", temperature=1.0, options=(("acceptance", "match"),)), "greedy"),
        (Cell("exact", options=(("drafter", "trajectory"),)), "recorded"),
        (Cell("exact", temperature=-1.0), "temperature"),
        (Cell("exact", block_length=0), "block_length"),
        (Cell("exact", options=(("draft_steps", 5),)), "draft_steps"),
    ],
)
def test_bad_cells_are_named_before_anything_runs(cell: Cell, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check([Cell("none"), cell], has_draft_model=True, block_length=4)
    assert repr(cell.key)[1:-1] in str(caught.value)
    assert words in str(caught.value)


def test_a_model_drafter_needs_a_draft_model() -> None:
    cells = [Cell("exact", options=(("drafter", "model"),))]
    check(cells, has_draft_model=True, block_length=4)
    with pytest.raises(ConfigError, match="draft model"):
        check(cells, has_draft_model=False, block_length=4)


@pytest.mark.parametrize(
    ("one", "other"), [(0.7, 0.7000001), (1.0, 1.0 + 2**-52), (1e-7, 1.0000001e-7), (0.1, 0.1 + 0.2 - 0.2), (2, 20)]
)
def test_temperatures_that_differ_at_all_have_keys_of_their_own(one: float, other: float) -> None:
    a, b = (Cell("none", temperature=value) for value in (one, other))
    assert a != b
    assert a.key != b.key
    assert a.place_name != b.place_name


@pytest.mark.parametrize(("value", "shown"), [(0.0, "0"), (-0.0, "0"), (0, "0"), (1, "1"), (1.0, "1"), (0.7, "0.7")])
def test_equal_temperatures_have_one_short_key(value: float, shown: str) -> None:
    assert Cell("none", temperature=value).key.endswith(f" T={shown}")
