"""A browser that visits the playground. Importing this skips the module where there is no browser to be had."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.serving.support import QUESTION

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect
expect.set_options(timeout=30_000)

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("there is no Chromium on this machine", allow_module_level=True)

# Quiet, and at home in a container: no sandbox, no graphics card, no calls home.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
SHOTS = Path(__file__).parents[2] / "artifacts" / "playground"
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
PHONE: dict[str, Any] = {
    "viewport": {"width": 360, "height": 740},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}
AS_IT_COMES = "1"


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_api.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Visitor:
    """Opens the page, and remembers what it complained about and what it asked of other hosts.

    key: what its pages answer when they ask for one.
    refusals: whether requests are meant to fail, which the browser itself notes in the console.
    """

    def __init__(self, browser: Browser, url: str) -> None:
        self.url = url
        self.key: str | None = None
        self.refusals = False
        self._complaints: list[str] = []
        self._browser = browser
        self._contexts: list[Any] = []

    def open(self, **options: Any) -> Page:
        """A page in a context of its own."""
        wanted: dict[str, Any] = DESKTOP | options
        context = self._browser.new_context(**wanted)
        self._contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: self._complaints.append(message.text))
        page.on("pageerror", lambda error: self._complaints.append(str(error)))
        page.on("request", self._check)
        page.goto(self.url)
        if self.key is not None:
            give_key(page, self.key)
        return page

    def ready(self, pace: str = AS_IT_COMES, **options: Any) -> Page:
        """A page that knows its model, at a pace."""
        page = self.open(**options)
        expect(page.locator("#model b")).to_have_text("tiny")
        if not page.locator("#pace").is_visible():
            page.locator("#settings summary").click()
        page.locator("#pace").select_option(pace)
        return page

    def complaints(self) -> list[str]:
        """Ends all visits."""
        for context in self._contexts:
            context.close()
        return [text for text in self._complaints if not (self.refusals and text.startswith("Failed to load"))]

    def _check(self, request: Any) -> None:
        if not request.url.startswith(self.url):
            self._complaints.append(f"asked for {request.url}")


def shoot(page: Page, name: str, *, whole: bool = False) -> None:
    """Leaves a screenshot."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.evaluate("Promise.allSettled(document.getAnimations().map((one) => one.finished))")
    if whole:
        page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=SHOTS / f"{name}.png", full_page=whole)


def give_key(page: Page, key: str) -> None:
    expect(page.locator("#key-dialog")).to_be_visible()
    page.locator("#key").fill(key)
    page.locator("#key").press("Enter")


def ask(page: Page, question: str = QUESTION) -> None:
    page.locator("#question").fill(question)
    page.locator("#question").press("Enter")


def done(page: Page) -> None:
    """Waits until the newest answer of the conversation has ended."""
    expect(page.locator("#messages .answer-box .link").last).to_be_visible()


def figure(page: Page, name: str, where: str = "#messages") -> str:
    """A figure below the newest answer."""
    found = page.locator(f"{where} .figures div", has=page.locator("dt", has_text=name)).last.locator("dd")
    return found.inner_text()
