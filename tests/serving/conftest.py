from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from simsd import LLM
from tests.tiny import write_checkpoint

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.serving.browser import Visitor


@pytest.fixture(scope="session")
def pair() -> LLM:
    """The embedded pair, in numbers so fine that no tie depends on who shares the batch, and with a window that does
    not depend on the clock, as the automatic one does.
    """
    return LLM(device="cpu", dtype="float64", max_num_seqs=8, num_speculative_tokens=8)


@pytest.fixture(scope="session")
def noise(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A small random model that goes on for up to 256 tokens, quickly; its text is bytes."""
    folder: Path = write_checkpoint(tmp_path_factory.mktemp("noise"), vocab_size=272, mask_token_id=259)
    return LLM(folder, dtype="float64", device="cpu", max_num_seqs=4, method="exact", drafter="self")


@pytest.fixture
def allow(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Engines run rounds only as these are allowed: `allow(3)`."""
    left, step = threading.Semaphore(0), LLM.step

    def when_allowed(llm: LLM) -> None:
        if threading.current_thread().name == "simsd-engine":
            assert left.acquire(timeout=60.0)
        step(llm)

    monkeypatch.setattr(LLM, "step", when_allowed)
    return left.release


@pytest.fixture(scope="module")  # not longer: while it runs, no other event loop can
def browser() -> Iterator[Browser]:
    from tests.serving.browser import chromium

    with chromium() as found:
        yield found


@pytest.fixture
def visitor(browser: Browser, url: str) -> Iterator[Visitor]:
    """Visits the server of the module's `url`; the page may complain about nothing."""
    from tests.serving.browser import Visitor

    found = Visitor(browser, url)
    yield found
    assert found.complaints() == []
