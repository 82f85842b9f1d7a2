from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest

from simsd.cli import chat
from tests.cli.conftest import Run
from tests.cli.fake import FakeLLM


def test_answers_follow_one_another_and_remember(run: Run, llm: FakeLLM) -> None:
    result = run("chat", input="one\n\ntwo\n")
    assert result.exit_code == 0
    assert result.stdout == "ONE\nTWO\n"
    asked = [message["content"] for message in llm.calls[1][1]]
    assert asked == ["one", "ONE", "two"]


def test_reset_and_forget_leave_nothing_behind(run: Run, llm: FakeLLM) -> None:
    run("chat", "--system", "be brief", input="one\n/reset\ntwo\n")
    assert [message["content"] for message in llm.calls[-1][1]] == ["be brief", "two"]
    run("chat", "--forget", input="one\ntwo\n")
    assert [message["content"] for message in llm.calls[-1][1]] == ["two"]


def test_the_embedded_pair_is_asked_single_questions(run: Run, llm: FakeLLM) -> None:
    llm.embedded = True
    run("chat", input="one\ntwo\n")
    assert len(llm.calls[-1][1]) == 1
    run("chat", "--remember", input="one\ntwo\n")
    assert len(llm.calls[-1][1]) == 3


def test_json_is_one_line_a_turn(run: Run) -> None:
    lines = run("chat", "--json", input="ab\nbad\nc\n").stdout.splitlines()
    turns = [json.loads(line) for line in lines]
    assert [turn.get("text") for turn in turns] == ["AB", None, "C"]
    assert turns[1]["error"]["type"] == "PromptError"
    assert turns[0]["prompt"] == "ab"


def test_a_failed_turn_is_told_and_forgotten(run: Run, llm: FakeLLM) -> None:
    result = run("chat", input="bad\ngood\n")
    assert result.exit_code == 2
    assert "is bad" in result.stderr
    assert [message["content"] for message in llm.calls[-1][1]] == ["good"]


def test_commands_answer_on_stderr(run: Run, llm: FakeLLM) -> None:
    result = run("chat", input="/stats\n/help\n/nothing\nabc\n/stats\n/quit\nnever\n")
    assert result.stdout == "ABC\n"
    assert "No answer yet." in result.stderr
    assert "/reset  forget the conversation" in result.stderr
    assert "There is no command /nothing." in result.stderr
    assert "3 tokens" in result.stderr
    assert len(llm.calls) == 1


class Terminal(StringIO):
    """Standard input that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_ctrl_c_stops_the_answer_and_keeps_what_came(
    llm: FakeLLM, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["hello", "/quit"])

    def typed(prompt: str = "") -> str:
        return next(lines)

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr("sys.stdin", Terminal())
    llm.interrupt = True
    session = _session(llm)
    session.run()
    assert "HE [stopped]" in capsys.readouterr().out
    assert session.conversation.messages[-1]["content"] == "HE"
    assert not session.failed


def test_ctrl_c_and_ctrl_d_at_the_prompt(
    llm: FakeLLM, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[type[BaseException]] = [KeyboardInterrupt, EOFError]

    def typed(prompt: str = "") -> str:
        raise events.pop(0)

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr("sys.stdin", Terminal())
    _session(llm).run()
    assert events == []
    assert "Ctrl-D leaves" in capsys.readouterr().err


def _session(llm: Any) -> chat._Session:
    from simsd.llm import SamplingParams

    return chat._Session(llm, SamplingParams(), chat.Conversation(), forget=False, as_json=False)


def test_no_standard_input_is_an_empty_one(run: Run, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    _session(llm).run()
    assert llm.calls == []
