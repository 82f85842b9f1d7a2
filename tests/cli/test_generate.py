from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.fake import FakeLLM


def test_one_prompt_goes_through_the_chat_template(run: Run, llm: FakeLLM) -> None:
    result = run("generate", "hello", "--max-tokens", "7", "--method", "simsd")
    assert result.exit_code == 0
    assert result.stdout == "HELLO\n"
    kind, messages, params = llm.calls[0]
    assert (kind, messages) == ("chat", [{"role": "user", "content": "hello"}])
    assert params.max_tokens == 7
    assert llm.made == {"method": "simsd"}


def test_raw_text_is_not_put_into_the_template(run: Run, llm: FakeLLM) -> None:
    assert run("generate", "hello", "--raw").exit_code == 0
    assert llm.calls[0][:2] == ("generate", "hello")


def test_a_checkpoint_without_template_gets_raw_text(run: Run, llm: FakeLLM) -> None:
    llm.tokenizer.chat_template = None
    assert run("generate", "a", "b").exit_code == 0
    assert llm.calls[0][:2] == ("generate", ["a", "b"])


def test_json_of_one_prompt_is_an_object_and_of_several_a_list(run: Run) -> None:
    one = json.loads(run("generate", "ab", "--json").stdout)
    assert one["text"] == "AB"
    assert one["token_ids"] == [65, 66]
    assert one["finish_reason"] == "stop"
    assert one["steps"] == [0, 0]
    assert one["stats"]["acceptance_rate"] == 0.75
    assert "error" not in one
    several = json.loads(run("generate", "ab", "c", "--json").stdout)
    assert [entry["text"] for entry in several] == ["AB", "C"]


def test_one_bad_prompt_of_several_fails_alone(run: Run) -> None:
    result = run("generate", "good", "bad", "fine", "--json")
    assert result.exit_code == 2
    entries = json.loads(result.stdout)
    assert [entry["text"] for entry in entries] == ["GOOD", "", "FINE"]
    assert [entry.get("error", {}).get("type") for entry in entries] == [None, "PromptError", None]


def test_a_single_bad_prompt_is_one_sentence(run: Run) -> None:
    result = run("generate", "bad")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "simsd: the prompt 'bad' is bad; ask another one.\n"
    as_json = run("generate", "bad", "--json")
    assert as_json.exit_code == 2
    assert json.loads(as_json.stdout) == {
        "error": {"type": "PromptError", "message": "the prompt 'bad' is bad; ask another one"}
    }


def test_prompts_from_a_file_and_from_standard_input(run: Run, llm: FakeLLM, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\n two\n", encoding="utf-8")
    run("generate", "--file", str(file))
    run("generate", input="three\nlines\n")
    run("generate", "-", "four", input="five")
    asked = [[m[-1]["content"] for m in (c if isinstance(c[0], list) else [c])] for _, c, _ in llm.calls]
    assert asked == [["one", " two"], ["three\nlines"], ["five", "four"]]


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_used_is_named(run: Run, tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "prompts.txt"
    if content is not None:
        file.write_bytes(content)
    result = run("generate", "--file", str(file))
    assert result.exit_code == 2
    assert str(file) in result.stderr
    assert "Traceback" not in result.stderr


def test_a_wrong_choice_is_one_sentence_that_lists_them(run: Run, llm: FakeLLM) -> None:
    result = run("generate", "x", "--drafter", "magic")
    assert result.exit_code == 2
    assert result.stderr == "simsd: --drafter is 'magic'; choose one of model, hybrid, self, trajectory, lookup.\n"
    assert llm.calls == []


def test_ctrl_c_ends_with_130(run: Run, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(llm, "chat", interrupted, raising=False)
    assert run("generate", "x").exit_code == 130


@pytest.mark.parametrize("command", ["generate", "trace"])
def test_a_prompt_that_is_no_text_is_refused(run: Run, llm: FakeLLM, command: str) -> None:
    result = run(command, "a\udcffb")
    assert result.exit_code == 2
    assert "not UTF-8 text" in result.stderr
    assert llm.calls == []


@pytest.mark.parametrize("error", [MemoryError(), type("OutOfMemoryError", (RuntimeError,), {})("CUDA")])
def test_no_memory_is_one_sentence(run: Run, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(llm, "chat", fail, raising=False)
    result = run("generate", "x")
    assert result.exit_code == 2
    assert "not enough memory" in result.stderr
