from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from simsd.benchmark.workload import Item, ask, fingerprint, lengths, load_items, task_items
from simsd.errors import ConfigError, PromptError
from simsd.evaluation.suites import load_suite
from simsd.llm import LLM, SamplingParams


def written(file: Path, *rows: Any) -> Path:
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n", "utf-8")
    return file


def test_suites_take_turns() -> None:
    items = load_items(["math", "chat", "math"], 2)
    assert [item.source for item in items] == ["math", "chat", "math", "chat"]
    assert items[2].question == load_suite("math", 2)[1]


def test_prompts_conversations_and_questions_of_files(tmp_path: Path) -> None:
    conversation = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}]
    prompts = written(
        tmp_path / "p.jsonl", {"prompt": "one\u2028line"}, "", {"messages": conversation}, {"prompt": "3"}
    )
    items = load_items([prompts])
    assert [item.prompt for item in items] == ["one\u2028line", conversation, "3"]
    assert {item.source for item in items} == {"p"}
    assert all(item.question is None for item in items)
    assert load_items([prompts], 2) == items[:2]
    gsm8k = written(tmp_path / "g.jsonl", {"question": "1 + 1?", "answer": "It is #### 2"})
    (item,) = load_items([gsm8k])
    assert item.question is not None and item.question.skill == "math"
    assert item.prompt == [{"role": "user", "content": "1 + 1?"}]


@pytest.mark.parametrize(
    ("rows", "line", "words"),
    [
        ([{"prompt": "a"}, "", "{"], 3, "not JSON"),
        ([{"prompt": "a"}, {"prompt": ""}], 2, "'prompt' is empty"),
        ([{"prompt": 5}], 1, "'prompt' is not text"),
        ([{"messages": [{"role": "user"}]}], 1, "what is no message"),
        ([{"messages": [{"role": "user", "content": ["a"]}]}], 1, "what is no message"),
        ([{"messages": {"role": "user", "content": "a"}}], 1, "no list of messages"),
        ([{"messages": []}], 1, "no list of messages"),
        ([{"prompt": "a"}, {"question": "b"}], 2, "'answer' is missing"),
        ([{"question": "#", "answer": "#### 1"}, {"prompt": None}], 2, "'prompt' is missing"),
        ([{"prompt": "a"}, {"task": "b"}], 2, "needs 'prompt'"),
        ([{"text": "a", "code": "b", "test_list": ["c"], "test_setup_code": 5}], 1, "'test_setup_code' is not text"),
        (['{"prompt": "\\ud800"}'], 1, "\\ud800 is half of a character"),
        (['{"messages": [{"role": "user", "content": "\\udc00!"}]}'], 1, "\\udc00 is half of a character"),
        (['{"question": "a", "answer": "#### \\udfff"}'], 1, "\\udfff is half of a character"),
        (['{"prompt": "a"}', "[" * 100_000 + "]" * 100_000], 2, "nested too deeply"),
        (['{"prompt": "a", "more": ' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}"], 1, "nested too deeply"),
        (['{"prompt": "a", "number": ' + "9" * 9000 + "}"], 1, "not JSON"),
        ([{"question": "b"}], 1, "answer"),
        (["[1]"], 1, "expected a JSON object"),
        (["{"], 1, "not JSON"),
    ],
)
def test_a_bad_line_is_named_with_its_file(tmp_path: Path, rows: list[Any], line: int, words: str) -> None:
    file = written(tmp_path / "bad.jsonl", *rows)
    with pytest.raises(ConfigError) as caught:
        load_items([file])
    assert f"{file}, line {line}: " in str(caught.value)
    assert words in str(caught.value)


def test_a_file_may_mix_prompts_and_questions_and_begin_with_a_mark(tmp_path: Path) -> None:
    file = written(tmp_path / "mixed.jsonl", {"prompt": "a"}, {"question": "1 + 1?", "answer": "#### 2"})
    plain = load_items([file])
    assert [item.question is None for item in plain] == [True, False]
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert load_items([file]) == plain


def test_a_file_is_a_file_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="math cannot be read"):
        load_items([Path("math")])
    with pytest.raises(ConfigError, match="math cannot be read"):
        load_suite(Path("math"))
    written(tmp_path / "math", {"question": "1 + 1?", "answer": "#### 2"})
    assert len(load_items([Path("math")])) == len(load_suite(Path("math"))) == 1
    assert len(load_suite("math")) == 200


@pytest.mark.parametrize(
    ("names", "taken", "sources"),
    [
        (["a.jsonl", "b.jsonl"], [], ["a", "b"]),
        (["a.jsonl", "x/a.jsonl", "b.jsonl"], [], ["a.jsonl", "x/a.jsonl", "b"]),
        (["a.jsonl", "a.json"], [], ["a.jsonl", "a.json"]),
        (["math.jsonl", "b.jsonl"], ["math"], ["math.jsonl", "b"]),
        (["a.jsonl", "a.jsonl", "./a.jsonl"], [], ["a"]),
    ],
)
def test_every_source_has_a_name_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], taken: list[str], sources: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    for name in names:
        written(Path(name), {"prompt": name})
    assert [item.source for item in load_items(map(Path, names), taken=taken)] == sources


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}\n')
    for name in ("latin.jsonl", "missing.jsonl"):
        with pytest.raises(ConfigError, match=name):
            load_items([tmp_path / name])
    with pytest.raises(ConfigError, match="limit is 0"):
        load_items(["math"], 0)
    with pytest.raises(ConfigError, match="limit is 0"):
        load_items([tmp_path / "latin.jsonl"], 0)
    with pytest.raises(ConfigError, match="no prompts"):
        load_items([])
    with pytest.raises(ConfigError, match="cannot be read"):
        load_items(["maths"])


def test_a_task_gives_the_prompts_of_the_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = ModuleType("simsd.evaluation.harness_run")
    stub.task_prompts = lambda name, limit, data: [f"{name} {n}" for n in range(limit)]  # pyright: ignore
    monkeypatch.setitem(sys.modules, "simsd.evaluation.harness_run", stub)
    assert task_items("gsm8k", 2) == [Item("gsm8k 0", source="gsm8k"), Item("gsm8k 1", source="gsm8k")]


def test_the_fingerprint_tells_prompts_their_order_and_answers() -> None:
    items = load_items(["math"], 3)
    question = items[0].question
    assert question is not None
    other = Item(items[0].prompt, type(question)("math", question.question, "#### 0"))
    found = [fingerprint(x) for x in (items, items[::-1], items[:2], [other, *items[1:]], load_items(["math"], 3))]
    assert found[0] == found[4]
    assert len(set(found)) == 4


def test_a_prompt_that_cannot_be_decoded_is_named(pair: LLM) -> None:
    fine = Item("hello", source="p")
    assert lengths(pair, [fine]) == [len(pair.tokenizer.encode("hello"))]
    with pytest.raises(PromptError, match=r"prompt 2 \(p\): the prompt has \d+ tokens"):
        lengths(pair, [fine, Item("number " * pair.max_model_len, source="p")])


def test_conversations_go_through_the_chat_template(pair: LLM) -> None:
    item = load_items(["trivia"], 1)[0]
    params = SamplingParams(max_tokens=8)
    assert not isinstance(item.prompt, str)
    found = ask(pair, [item, Item("raw")], [params, params])
    assert found[0].token_ids == pair.chat(item.prompt, params)[0].token_ids
    assert found[1].token_ids == pair.generate("raw", params)[0].token_ids
