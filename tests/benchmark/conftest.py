from __future__ import annotations

import pytest

from simsd.benchmark.workload import Item, suite_items
from simsd.llm import LLM


@pytest.fixture(scope="session")
def pair() -> LLM:
    """The embedded pair, set up for ordinary decoding."""
    return LLM(method="none", device="cpu")


@pytest.fixture(scope="session")
def two_questions() -> list[Item]:
    return suite_items(["trivia"], 2)
