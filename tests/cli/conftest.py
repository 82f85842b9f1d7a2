from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from simsd.cli import common, main
from tests.cli.fake import FakeLLM

Run = Callable[..., Any]


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    """The engine that every command gets in this test."""
    fake = FakeLLM()

    def make_llm(options: Any, **more: Any) -> FakeLLM:
        fake.made = options.llm_options() | more
        return fake

    monkeypatch.setattr(common, "make_llm", make_llm)
    return fake


@pytest.fixture
def run(llm: FakeLLM) -> Run:
    """Runs the command line: `run("generate", "hello", input="...")`."""
    runner = CliRunner()

    def invoke(*arguments: str, input: str | None = None) -> Any:
        return runner.invoke(main.app, list(arguments), input=input)

    return invoke
