"""The playground's files: what they may load, and that they are whole; test_playground.py shows them to a browser."""

from __future__ import annotations

import asyncio
import json
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

from simsd import LLM
from simsd.serving.page import POLICY
from tests.serving.support import running

FOLDER = Path(str(resources.files("simsd.serving") / "playground"))
SUITES = Path(str(resources.files("simsd") / "assets" / "suites"))
FILES = sorted(FOLDER.iterdir())


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags() -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed((FOLDER / "index.html").read_text("utf-8"))
    return parser.found


def test_every_file_is_served_under_the_policy(noise: LLM) -> None:
    async def check() -> None:
        async with running(noise, api_key="s3cret") as server:  # the page itself needs no key
            for name in ["", *(file.name for file in FILES)]:
                response = await server.client.get(f"/{name}")
                assert response.status_code == 200
                assert response.headers["x-content-type-options"] == "nosniff"
                policy = dict(part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
                assert policy == POLICY
            types = {file.suffix: (await server.client.get(f"/{file.name}")).headers["content-type"] for file in FILES}
            assert types[".js"].split(";")[0] in ("text/javascript", "application/javascript")
            assert types[".svg"] == "image/svg+xml"
            assert "content-security-policy" not in (await server.client.get("/health")).headers

    asyncio.run(check())


def test_the_policy_allows_nothing_from_elsewhere() -> None:
    assert POLICY["default-src"] == "'none'"
    assert set(POLICY.values()) == {"'none'", "'self'", "'script'"}


def test_the_page_has_no_inline_code_and_loads_what_is_there() -> None:
    for tag, attrs in tags():
        assert tag != "style"
        assert "style" not in attrs
        assert not any(name.startswith("on") for name in attrs)
        if tag in ("script", "link"):
            assert (FOLDER / (attrs.get("src") or attrs.get("href") or "")).is_file()


def test_labels_and_parts_that_are_named_exist_once() -> None:
    ids = [attrs["id"] for _, attrs in tags() if "id" in attrs]
    assert len(ids) == len(set(ids))
    named = ("for", "aria-controls", "aria-labelledby", "aria-describedby")
    wanted = {name for _, attrs in tags() for key in named for name in (attrs.get(key) or "").split()}
    scripts = "".join(file.read_text("utf-8") for file in FOLDER.glob("*.js"))
    wanted |= set(re.findall(r'get\("([\w-]+)"\)', scripts))
    assert wanted <= set(ids)


def test_examples_are_questions_of_every_suite_that_the_pair_answers(pair: LLM) -> None:
    lines = [line for suite in SUITES.glob("*.jsonl") for line in suite.read_text("utf-8").splitlines()]
    known = {item["question"]: item for item in map(json.loads, lines)}
    examples = [attrs["data-question"] or "" for _, attrs in tags() if "data-question" in attrs]
    assert {known[question]["skill"] for question in examples} == {suite.stem for suite in SUITES.glob("*.jsonl")}
    conversations = [[{"role": "user", "content": question}] for question in examples]
    answers = pair.with_options(method="simsd").chat(conversations)
    assert [answer.text for answer in answers] == [known[question]["answer"] for question in examples]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_has_one_subject_and_writes_no_markup(file: Path) -> None:
    text = file.read_text("utf-8")
    assert len(text.splitlines()) < 400
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert sink not in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
