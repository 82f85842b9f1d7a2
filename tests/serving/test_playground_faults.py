"""The playground where something is wrong: keys, refusals, broken streams, hostile text; and what it must never do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from simsd import LLM
from simsd.serving.app import create_app
from simsd.serving.settings import ServerSettings
from tests.serving.browser import Visitor, ask, done, expect, give_key, shoot
from tests.serving.support import ANSWER, CHAT, QUESTION, listening

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture(scope="module")
def url(pair: LLM) -> Iterator[str]:
    with listening(create_app(pair.with_options(method="simsd"), ServerSettings(api_key="s3cret"))) as address:
        yield address


@pytest.fixture
def known(visitor: Visitor) -> Visitor:
    """A visitor whose pages get the key."""
    visitor.refusals, visitor.key = True, "s3cret"
    return visitor


def test_the_key_is_asked_for_until_it_is_right_and_kept_for_the_tab_alone(visitor: Visitor) -> None:
    visitor.refusals = True
    page = visitor.open()
    expect(page.locator("h1")).to_have_text("simsd")
    give_key(page, "wrong")
    expect(page.locator("#key-reason")).to_contain_text("not the server's")
    give_key(page, "s3cret")
    expect(page.locator("#model b")).to_have_text("tiny")
    ask(page, "What is the chemical symbol of hafnium?")
    done(page)
    assert page.locator("#messages .settled").inner_text() == "Hf"
    assert page.evaluate("localStorage.length") == 0
    page.reload()
    expect(page.locator("#model b")).to_have_text("tiny")
    assert not page.locator("#key-dialog").is_visible()


def test_who_has_no_key_is_told_and_may_try_again(visitor: Visitor) -> None:
    visitor.refusals = True
    page = visitor.open()
    expect(page.locator("#key-reason")).to_contain_text("asks for a key")
    shoot(page, "key")
    page.locator("#key-cancel").click()
    expect(page.locator("#trouble-text")).to_have_text("This server answers only with its key.")
    for select in page.locator("select").all():
        assert select.evaluate("node => node.selectedOptions[0].text")  # none is empty, though no model is known
    shoot(page, "no-key")
    page.locator("#retry").click()
    give_key(page, "s3cret")
    expect(page.locator("#model b")).to_have_text("tiny")
    assert not page.locator("#trouble").is_visible()


def test_a_refusal_is_one_sentence_and_the_next_question_is_answered(known: Visitor) -> None:
    page = known.ready()
    ask(page, "again " * 3000)
    error = page.locator("#messages .error")
    expect(error).to_contain_text("tokens")
    assert error.inner_text().count(".") == 1
    assert not page.locator("#messages .answer").is_visible()  # no empty line above it
    shoot(page, "refused")
    ask(page)
    done(page)
    assert page.locator("#messages .settled").last.inner_text() == ANSWER


CHUNK = 'data: {"choices": [{"index": 0, "delta": {"content": "Half an"}}]}\n\n'
BROKEN = [
    (CHUNK, "The connection ended before the answer did."),
    (CHUNK + 'data: {"error": {"message": "there was not enough memory"}}\n\n', "There was not enough memory."),
    (None, "The server cannot be reached; is it still running?"),
]


@pytest.mark.parametrize(("body", "told"), BROKEN, ids=["cut", "error", "gone"])
def test_a_stream_that_breaks_keeps_what_came_and_says_why(known: Visitor, body: str | None, told: str) -> None:
    page = known.ready()

    def answer(route: Any) -> None:
        if body is None:
            route.abort()
        else:
            route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route(f"**{CHAT}", answer)
    ask(page)
    expect(page.locator("#messages .error")).to_have_text(told)
    assert page.locator("#messages .settled").inner_text() == ("" if body is None else "Half an")
    expect(page.locator("#send")).to_be_visible()


def test_a_server_without_an_answer_for_a_race_is_told_in_its_lane(known: Visitor) -> None:
    page = known.ready()
    page.locator("#tab-race").click()
    page.route(f"**{CHAT}", lambda route: route.fulfill(status=503, body="<html>a proxy's own page</html>"))
    page.locator("#race-start").click()
    for side in ("left", "right"):
        expect(page.locator(f"#lane-{side} .error")).to_have_text("The server answered with status 503.")
    assert page.locator("#result p").count() == 0


def test_text_never_becomes_markup(known: Visitor) -> None:
    page = known.ready()
    told = CHUNK.replace("Half an", HOSTILE) + "data: [DONE]\n\n"
    page.route(f"**{CHAT}", lambda route: route.fulfill(status=200, content_type="text/event-stream", body=told))
    ask(page, HOSTILE)
    expect(page.locator("#messages .settled")).to_have_text(HOSTILE)
    assert page.locator("#messages .asked").inner_text() == HOSTILE
    assert page.locator("#messages img, #messages script").count() == 0


def test_events_may_be_cut_anywhere(known: Visitor) -> None:
    page = known.ready()
    found = page.evaluate(
        """async () => {
          const { eventData } = await import("/api.js");
          const bytes = new TextEncoder().encode('data: {"a":"ü€😀"}\\n\\ndata: [DONE]\\n\\n');
          const read = async (size) => {
            const parts = [];
            for (let at = 0; at < bytes.length; at += size) parts.push(bytes.slice(at, at + size));
            const found = [];
            for await (const data of eventData(parts)) found.push(data);
            return found.join();
          };
          return Promise.all([1, 2, 3, 5, 100].map(read));
        }"""
    )
    assert found == ['{"a":"ü€😀"},[DONE]'] * 5


def test_tokens_are_found_in_the_text_though_they_look_different_in_it(known: Visitor) -> None:
    """A blank that only the text has, characters of several tokens, and a last token that is no text."""
    tokens = ["Hi", "there", "\ufffd", "\ufffd", "!", "<|end|>", "x", "y"]
    text, pieces = "Hi there😀!", ["Hi", " there", "😀", "!"]
    page = known.ready()
    found = page.evaluate(
        """async ([tokens, text]) => {
          const { Answer } = await import("/answer.js");
          const place = (after, at) => {
            const verdict = at ? "accepted" : "bonus";
            return { position: 8 + at, verdict, before: null, after, drafted: after, draft_step: 1 };
          };
          const places = tokens.map(place);
          const round = (first) => (
            { block_start: 8 + first, block_length: 4, finished_blocks: 1, places: places.slice(first, first + 4) });
          const answer = new Answer("", "");
          const content = (content) => ({ choices: [{ delta: { content } }] });
          answer.take({ choices: [], simsd: { round: round(0) } }, 1);
          answer.take(content(text.slice(0, 8)), 1);
          answer.take({ choices: [], simsd: { round: round(4) } }, 2);
          answer.take(content(text.slice(8)), 2);
          answer.end("stop");
          return answer.pieces.map((piece) => [piece.text, piece.verdict, piece.round]);
        }""",
        [tokens, text],
    )
    assert [piece for piece, _, _ in found] == pieces
    assert [(verdict, index) for _, verdict, index in found] == [("bonus", 0), *[("accepted", 0)] * 2, ("accepted", 1)]


PAIRS = [
    *(
        ("ink", "paper"),
        ("ink", "panel"),
        ("ink", "main-soft"),
        ("soft", "paper"),
        ("soft", "panel"),
        ("soft", "field"),
    ),
    *(("main", "paper"), ("on-main", "main"), ("trouble", "paper"), ("trouble", "trouble-bg"), ("soft", "main-soft")),
    *((name, f"{name}-bg") for name in ("accepted", "corrected", "bonus", "rejected")),
]
EDGES = [("edge", "paper"), ("edge", "field"), ("sees", "hidden"), ("sees-slot", "hidden"), ("main", "paper")]
EDGES += [(name, "paper") for name in ("accepted", "corrected", "bonus", "rejected")]


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_told_apart(known: Visitor, scheme: str) -> None:
    """WCAG 2 AA: 4.5 for text, 3 for edges and marks."""
    page = known.ready(color_scheme=scheme, reduced_motion="reduce")
    read = "name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()"
    for least, pairs in ((4.5, PAIRS), (3.0, EDGES)):
        for one, other in pairs:
            low, high = sorted(luminance(page.evaluate(read, name)) for name in (one, other))
            assert (high + 0.05) / (low + 0.05) >= least, (one, other)
    ask(page, QUESTION)
    page.wait_for_selector("#messages .token")
    assert page.evaluate("document.getAnimations().length") == 0
