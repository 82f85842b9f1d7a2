from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simsd.tracing.data import trace_data, visible
from simsd.tracing.page import page
from tests.cli.fake import FakeLLM

NASTY = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> \" ' & {{data}} {{script}} \u2028 \x00"


class Elements(HTMLParser):
    """Start tags, and the text of each script and style element."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.content: list[str] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.content.append("")
        self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.content[-1] += data


def elements(text: str) -> Elements:
    found = Elements()
    found.feed(text)
    found.close()
    return found


def data(prompt: str, token: str = "a") -> dict[str, Any]:
    completion = FakeLLM(made={"trace": True})._answer("hi", True)
    return trace_data(prompt, completion, lambda _: token, {"method": "exact"})


def scripts(found: Elements) -> list[tuple[dict[str, str | None], str]]:
    return [(a, text) for (tag, a), text in zip(found.tags, found.content, strict=True) if tag == "script"]


@given(st.text() | st.just(NASTY), st.text() | st.just(NASTY))
def test_no_prompt_and_no_token_can_become_markup(prompt: str, token: str) -> None:
    trace = data(prompt, token)
    plain, found = elements(page(data("a"))), elements(page(trace))
    assert found.tags == plain.tags
    (kind, stored), (_, script) = scripts(found)
    assert kind["type"] == "application/json"
    assert json.loads(stored) == trace
    assert script == scripts(plain)[1][1]


def test_the_policy_allows_this_style_and_this_script_only() -> None:
    text = page(data(NASTY))
    found = elements(text)
    policy = next(attrs["content"] for tag, attrs in found.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    style = next(text for (tag, _), text in zip(found.tags, found.content, strict=True) if tag == "style")
    script = scripts(found)[1][1]
    hashes = {base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (style, script)}
    assert allowed == hashes


def test_nothing_is_loaded_from_elsewhere() -> None:
    text = page(data("hello"))
    assert "http://" not in text
    assert "https://" not in text
    for _, attrs in elements(text).tags:
        assert not {"src", "href", "style"} & set(attrs)
        assert not any(name.startswith("on") for name in attrs)


def test_the_script_never_writes_markup() -> None:
    script = scripts(elements(page(data("hello"))))[1][1]
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert sink not in script


@pytest.mark.parametrize(
    ("text", "shown"), [("", "∅"), (" a\n", "␣a↵"), ("\x1b[31m", "\\x1b[31m"), ("é\t", "é⇥"), ("\u202e", "\\u202e")]
)
def test_what_cannot_be_seen_is_spelt_out(text: str, shown: str) -> None:
    assert visible(text) == shown
