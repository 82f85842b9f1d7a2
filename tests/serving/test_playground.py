"""The playground in a real browser. Screenshots are left in artifacts/playground."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from fastapi import FastAPI

from simsd import LLM
from simsd.engine.completion import Completion
from simsd.engine.trace import RoundTrace
from simsd.serving.app import create_app
from simsd.serving.settings import ServerSettings
from tests.serving.browser import PHONE, Visitor, ask, done, expect, figure, shoot
from tests.serving.support import ANSWER, FREELY, QUESTION, listening

if TYPE_CHECKING:
    from playwright.sync_api import Page

WINDOW = 6
MATH = "Elif packs 8 bags with 7 cards each and keeps 14 cards loose. How many cards are there in total?"
FINAL = ("accepted", "corrected", "bonus")


@pytest.fixture(scope="module")
def app(pair: LLM) -> FastAPI:
    return create_app(pair, ServerSettings())


@pytest.fixture(scope="module")
def url(app: FastAPI) -> Iterator[str]:
    with listening(app) as address:
        yield address


def chat(pair: LLM, question: str) -> Completion:
    """The paper's method, with a window that leaves blocks half done; its rounds do not depend on the clock."""
    llm = pair.with_options(method="simsd", num_speculative_tokens=WINDOW, trace=True)
    return llm.chat([{"role": "user", "content": question}])[0]


@pytest.fixture(scope="module")
def expected(pair: LLM) -> Completion:
    return chat(pair, QUESTION)


@pytest.fixture(scope="module")
def rounds(expected: Completion) -> list[RoundTrace]:
    assert expected.trace
    return expected.trace


@pytest.fixture(scope="module")
def math(pair: LLM) -> Completion:
    return chat(pair, MATH)


def choose(page: Page, side: str = "") -> None:
    """The method of `chat`."""
    page.locator(f"#method{side}").select_option("simsd")
    page.locator(f"#window{side}").fill(str(WINDOW))


def answer_start(rounds: list[RoundTrace]) -> int:
    return rounds[0].block_start + rounds[0].verdict.count("known")


def fates(rounds: list[RoundTrace]) -> dict[int, str]:
    """Position -> how its token came."""
    came = {}
    for one in rounds:
        came |= {one.block_start + at: verdict for at, verdict in enumerate(one.verdict) if verdict in FINAL}
    return came


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_answer_is_written_counted_and_announced(visitor: Visitor, expected: Completion, scheme: str) -> None:
    page = visitor.ready(color_scheme=scheme)
    shoot(page, f"empty-{scheme}")
    choose(page)
    page.locator("#examples button").first.click()
    done(page)
    assert page.locator("#messages .settled").inner_text() == ANSWER
    assert page.locator("#messages .cell").count() == 0
    stats = expected.stats
    assert figure(page, "forwards") == str(stats.target_forwards)
    assert figure(page, "accepted") == f"{100 * (stats.acceptance_rate or 0):.0f} %"
    assert figure(page, "tokens a forward") == f"{stats.tokens_per_forward:.2f}"
    came = page.locator("#messages .token").evaluate_all("nodes => nodes.map((node) => node.classList[1])")
    rounds = expected.trace or []
    fate = fates(rounds)
    assert came == [fate[answer_start(rounds) + at] for at in range(stats.tokens)]
    assert "corrected" in came
    expect(page.locator("#announcer")).to_have_text(f"Answer: {ANSWER}")
    assert page.evaluate("document.activeElement.id") == "question"
    shoot(page, f"chat-{scheme}")


def open_places(rounds: list[RoundTrace], token: Callable[[int], str]) -> list[list[str]]:
    """Verdict and token of each place that the last of these rounds left open."""
    came, last = fates(rounds), rounds[-1]
    found = []
    for at in range(last.finished_blocks * last.block_length, len(last.verdict)):
        verdict, place = last.verdict[at], last.block_start + at
        told = {"masked": None, "rejected": last.drafted[at]}.get(verdict, last.after[at])
        if place >= answer_start(rounds):
            found.append([came.get(place, verdict), "" if told is None else token(told).strip() or "␣"])
    return found


def test_places_are_seen_as_they_are_revealed_until_esc_frees_the_place(
    visitor: Visitor, pair: LLM, app: FastAPI, math: Completion, allow: Callable[[int], None]
) -> None:
    rounds = math.trace or []
    page = visitor.ready()
    choose(page)
    try:
        ask(page, MATH)
        expect(page.locator("#messages .note")).to_have_text("waiting for the server …")
        read = "nodes => nodes.map((node) => [node.classList[1], node.querySelector('.cell-text').textContent])"
        seen: list[list[str]] = []
        for count in range(1, 6):
            allow(1)
            expect(page.locator("#messages .figures div", has_text="forwards").locator("dd")).to_have_text(str(count))
            cells = page.locator("#messages .cell").evaluate_all(read)
            assert cells == open_places(rounds[:count], pair.tokenizer.token)
            seen += cells
        assert {verdict for verdict, _ in seen} >= {"accepted", "corrected", "rejected", "masked"}
        shoot(page, "live")
        assert math.text.startswith(page.locator("#messages .settled").inner_text())
        page.keyboard.press("Escape")
        expect(page.locator("#messages .note")).to_have_text("stopped")
        expect(page.locator("#send")).to_be_visible()
    finally:
        allow(FREELY)
    deadline = time.monotonic() + 30.0
    while app.state.engine.open_jobs or app.state.pool.leased:
        assert time.monotonic() < deadline, "the place was never given back"
        time.sleep(0.01)


def test_the_keyboard_reaches_everything(visitor: Visitor) -> None:
    page = visitor.ready()
    question = page.locator("#question")
    question.fill("first")
    question.press("Shift+Enter")
    question.press_sequentially("second")
    assert question.input_value() == "first\nsecond"
    assert page.locator("#messages .turn").count() == 0
    question.fill("   ")
    question.press("Enter")
    assert page.locator("#messages .turn").count() == 0
    page.locator("#tab-chat").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#panel-race")).to_be_visible()
    reached = set()
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert {"race-question", "start", "race-start", "method-left", "method-right", "schedule", "pace"} <= reached
    assert not {"method", "remember"} & reached  # they say nothing about a race


def test_a_slower_pace_stretches_all_but_the_first_wait_and_shows_the_same(visitor: Visitor) -> None:
    page = visitor.ready(pace="4")
    choose(page)
    told = "async () => { const { slower } = await import('/tape.js'); return [0, 300, 310].map(slower(10, 300)); }"
    assert page.evaluate(told) == [0, 300, 400]
    ask(page)
    done(page)
    assert page.locator("#messages .settled").inner_text() == ANSWER


def test_two_methods_race_and_are_compared(visitor: Visitor, rounds: list[RoundTrace]) -> None:
    page = visitor.ready()
    page.locator("#tab-race").click()
    assert page.locator("#window-left").is_disabled()  # ordinary decoding has none
    choose(page, "-right")
    page.locator("#race-question").fill(QUESTION)
    page.locator("#race-start").click()
    result = page.locator("#result")
    expect(result).to_contain_text("was first")
    for side in ("left", "right"):  # the views are drawn once a frame, so up to one frame later
        expect(page.locator(f"#lane-{side} .link")).to_be_visible()
    texts = [page.locator(f"#lane-{side} .settled").inner_text() for side in ("left", "right")]
    assert texts[0] == ANSWER
    same = "Both wrote the same text." if texts[0] == texts[1] else "The texts differ from character"
    assert same in result.inner_text()
    assert figure(page, "forwards", "#lane-right") == str(len(rounds))
    assert int(figure(page, "forwards", "#lane-left")) > len(rounds)
    shoot(page, "race")
    page.locator("#start").select_option("in-turn")
    page.locator("#race-question").fill("What is the chemical symbol of hafnium?")
    page.locator("#race-start").click()
    expect(result.locator("p")).to_have_count(1)
    expect(result).to_contain_text("was first")


def test_the_rounds_show_what_was_drafted_and_who_saw_whom(
    visitor: Visitor, pair: LLM, rounds: list[RoundTrace]
) -> None:
    page = visitor.ready()
    choose(page)
    ask(page)
    done(page)
    page.locator("#messages .link").click()
    assert page.evaluate("document.activeElement.id") == "round"
    for index in range(3):
        expect(page.locator("#round-of")).to_have_text(f"round {index + 1} of {len(rounds)}")
        after = page.locator("#blocks tr", has=page.get_by_role("rowheader", name="after")).locator(".cell")
        classes = [node.split()[1] for node in after.evaluate_all("nodes => nodes.map((node) => node.className)")]
        assert classes == rounds[index].verdict
        page.keyboard.press("ArrowRight")
    layout = rounds[3].layout
    picture, told = page.locator("#mask"), page.locator("#mask-cell")
    picture.focus()
    row = column = 0
    picture.press("ArrowDown")  # the first key shows where the cursor is
    for key in ["ArrowDown"] * (len(layout.ids) - 1) + ["ArrowRight"] * (len(layout.ids) - 1):
        verb = "sees" if layout.mask[row][column] else "does not see"
        names = [f"{layout.labels[at]} at {layout.positions[at]}" for at in (row, column)]
        expect(told).to_contain_text(names[0])
        said = told.inner_text().split(". In all")[0]
        assert said.startswith(names[0])
        assert f") {verb} {names[1]} (" in said
        picture.press(key)
        row, column = (row + 1, column) if key == "ArrowDown" else (row, column + 1)
    image = "node.getContext('2d').getImageData(0, 0, node.width, node.height).data.buffer"
    assert picture.evaluate(f"node => new Set(new Uint32Array({image})).size") > 3  # something is drawn
    shoot(page, "rounds", whole=True)
    page.locator("#tab-chat").click()
    token = page.locator("#messages .token").last
    index = int(token.get_attribute("data-round") or -1)
    token.click()
    expect(page.locator("#round-of")).to_have_text(f"round {index + 1} of {len(rounds)}")


def test_a_phone_needs_no_sideways_scrolling(visitor: Visitor) -> None:
    page = visitor.ready(**PHONE)
    wide = "document.documentElement.scrollWidth"
    assert page.evaluate(wide) == 360
    choose(page)
    ask(page, "Write the multiplication table of 9 up to 8.")
    done(page)
    expect(page.locator("#messages .token").first).to_be_in_viewport()  # though the settings are further down
    page.locator("#settings summary").click()
    assert page.evaluate(wide) == 360
    shoot(page, "phone-chat")
    page.locator("#messages .link").click()
    assert page.evaluate(wide) == 360
    shoot(page, "phone-rounds", whole=True)
    page.locator("#tab-race").click()
    assert page.evaluate(wide) == 360
    shoot(page, "phone-race", whole=True)


def test_a_race_that_its_controls_no_longer_describe_is_forgotten(visitor: Visitor) -> None:
    page = visitor.ready()
    page.locator("#tab-race").click()
    for change in (
        lambda: page.locator("#method-right").select_option("simsd"),
        lambda: page.locator("#window-right").fill("5"),
    ):
        page.locator("#race-start").click()
        expect(page.locator("#result p").first).to_be_visible()
        change()
        assert page.locator("#result p").count() == 0
        assert page.locator(".lane .answer-box").count() == 0
        expect(page.locator("#lane-left")).to_have_text("Ready.")
    shoot(page, "race-forgotten")


def test_tabs_are_reached_by_all_their_keys_and_names_are_told_apart(visitor: Visitor) -> None:
    page = visitor.ready()
    page.locator("#tab-chat").focus()
    for key, wanted in (("End", "rounds"), ("ArrowRight", "chat"), ("ArrowLeft", "rounds"), ("Home", "chat")):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.id") == f"tab-{wanted}"
        assert page.locator(f"#panel-{wanted}").is_visible()
    page.keyboard.press("ArrowRight")
    assert page.get_by_label("Start", exact=True).count() == 0  # the button alone is called so
    assert page.locator("#temperature").get_attribute("placeholder") == "0"
