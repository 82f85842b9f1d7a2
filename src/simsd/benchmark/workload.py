"""The prompts of a run: an embedded suite, a file, or a task of the evaluation harness."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from simsd.errors import ConfigError, PromptError
from simsd.evaluation.lines import parse, read_text, text_of
from simsd.evaluation.suites import SUITES, Question, load_suite, messages, question_of
from simsd.llm import LLM, Completion, SamplingParams
from simsd.models.prompts import prompt_ids
from simsd.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class Item:
    """prompt: raw text, or the messages of a conversation. question: where the answer can be graded."""

    prompt: str | list[dict[str, str]]
    question: Question | None = None
    source: str = ""


def load_items(names: Iterable[str | Path], limit: int | None = None, taken: Iterable[str] = ()) -> list[Item]:
    """The first `limit` items of each embedded suite (its name, as text) or JSON Lines file, in turn from all of them.

    A line of a file is {"prompt": text}, {"messages": [...]}, or a question as `load_suite` reads it.
    taken: further sources, whose names no file may have. Raises ConfigError naming file and line.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is {limit}; it must be at least 1")
    asked = dict.fromkeys(name if name in SUITES else Path(name) for name in names)
    if not asked:
        raise ConfigError(f"no prompts are named; give a suite ({', '.join(SUITES)}) or a JSONL file")
    suites = {name for name in asked if isinstance(name, str)}
    files = _names([name for name in asked if isinstance(name, Path)], {*taken, *suites})
    lists = [
        _read(name, limit, files[name])
        if isinstance(name, Path)
        else [Item(messages(question), question, name) for question in load_suite(name, limit)]
        for name in asked
    ]
    return [item for turn in itertools.zip_longest(*lists) for item in turn if item is not None]


def _names(paths: Sequence[Path], taken: set[str]) -> dict[Path, str]:
    """What each file is called in reports: its stem, or its whole path where another source has that name."""
    stems = Counter(path.stem for path in paths)
    return {path: str(path) if stems[path.stem] > 1 or path.stem in taken else path.stem for path in paths}


def _read(path: Path, limit: int | None, name: str) -> list[Item]:
    items = parse(read_text(path), str(path), lambda row: _item(row, name), limit)
    if not items:
        raise ConfigError(f"{path} holds no prompt and no question; write one a line")
    return items


def _item(row: dict[str, Any], name: str) -> Item:
    if "prompt" in row:
        if not text_of(row, "prompt"):
            raise ConfigError("'prompt' is empty")
        return Item(row["prompt"], source=name)
    if "messages" in row:
        return Item(_conversation(row["messages"]), source=name)
    if not {"question", "text"} & set(row):
        raise ConfigError("needs 'prompt', a text, 'messages', a conversation, or 'question' with its 'answer'")
    question = question_of(row)
    return Item(messages(question), question, name)


def _conversation(rows: Any) -> list[dict[str, str]]:
    if not isinstance(rows, list) or not rows:
        raise ConfigError("'messages' is no list of messages")
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("role"), str) or not isinstance(row.get("content"), str):
            raise ConfigError('\'messages\' holds what is no message; write {"role": "user", "content": text}')
    return [{name: value for name, value in row.items() if isinstance(value, str)} for row in rows]


def task_items(name: str, limit: int | None = None, data: Mapping[str, str] | None = None) -> list[Item]:
    """The prompts of a task of lm-evaluation-harness, as it would ask them.

    data: files for tasks that ask for them by name, such as {"gsm8k": "test.jsonl"}. Raises ConfigError.
    """
    if find_spec("lm_eval") is None:
        raise ConfigError("tasks need lm-evaluation-harness; run: pip install 'simsd[eval]'")
    from simsd.evaluation.harness_run import task_prompts

    return [Item(prompt, source=name) for prompt in task_prompts(name, limit, data=data)]


def lengths(llm: LLM, items: Sequence[Item]) -> list[int]:
    """Tokens of each prompt. Raises PromptError naming the first that cannot be decoded, before any is."""
    found = []
    for number, item in enumerate(items, start=1):
        try:
            found.append(len(prompt_ids(prompt_of(llm.tokenizer, item), llm.tokenizer, llm.config, llm.max_model_len)))
        except PromptError as error:
            raise PromptError(f"prompt {number} ({item.source}): {error}") from error
    return found


def ask(llm: LLM, items: Sequence[Item], params: Sequence[SamplingParams]) -> list[Completion]:
    """Decodes the items as one batch; conversations go through the chat template where the checkpoint has one."""
    prompts: list[Any] = [prompt_of(llm.tokenizer, item) for item in items]
    return llm.generate(prompts, list(params))


def prompt_of(tokenizer: Tokenizer, item: Item) -> str | list[int]:
    """What is decoded: text as it is, or the ids of a conversation; its text where there is no chat template."""
    if isinstance(item.prompt, str):
        return item.prompt
    if tokenizer.chat_template is None:
        return "\n\n".join(message["content"] for message in item.prompt)
    return tokenizer.apply_chat_template(item.prompt)


def fingerprint(items: Sequence[Item]) -> str:
    """Equal for equal prompts and right answers in the same order."""
    text = json.dumps([[item.prompt, item.question and asdict(item.question)] for item in items], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
