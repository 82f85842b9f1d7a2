from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

pytest.importorskip("matplotlib")

from simsd.benchmark.page import page
from simsd.benchmark.report import TABLES
from tests.benchmark.support import EXACT, report, rows

NASTY = "</style><script>alert(1)</script><img src=x onerror=alert(1)> \" ' & {{ title }} {% raw %}"


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def text() -> str:
    return page(report(rows(EXACT)))


def test_tables_figures_and_facts_are_on_the_page(text: str) -> None:
    assert text.count("<table>") == len(TABLES)
    assert text.count("<svg") == 3
    for columns in TABLES.values():
        for column in columns:
            assert f'<th scope="col">{column.title}</th>' in text
    assert "big, draft model small" in text
    assert "dynamic, T = 0" in text


def test_no_name_can_become_markup(text: str) -> None:
    nasty = page(report(rows(EXACT), model=NASTY, device=NASTY, workload={NASTY: 1}), title=NASTY)
    plain = [tag for tag, _ in Elements(text).tags]
    assert [tag for tag, _ in Elements(nasty).tags] == plain
    assert "<script" not in nasty


def test_the_policy_allows_this_style_and_nothing_else(text: str) -> None:
    policy = next(a["content"] for _, a in Elements(text).tags if a.get("http-equiv") == "Content-Security-Policy")
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert len(style) == 1
    digest = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_nothing_is_loaded_and_nothing_runs(text: str) -> None:
    for tag, attributes in Elements(text).tags:
        assert tag not in {"script", "link", "img", "iframe", "object"}
        assert "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        for name, value in attributes.items():
            if name.endswith(("href", "src")):
                assert value and value.startswith("#")
    ids = [a["id"] for _, a in Elements(text).tags if "id" in a]
    assert len(ids) == len(set(ids))
