"""The prompts of a run: an embedded suite, a file, or a task of the evaluation harness."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from simsd.errors import ConfigError, PromptError
from simsd.evaluation.suites import SUITES, Question, load_suite, messages
from simsd.llm import LLM, Completion, SamplingParams
from simsd.models.prompts import prompt_ids


@dataclass(frozen=True)
class Item:
    """prompt: raw text, or the messages of a conversation. question: where the answer can be graded."""

    prompt: str | list[dict[str, str]]
    question: Question | None = None
    source: str = ""


def load_items(names: Iterable[str | Path], limit: int | None = None) -> list[Item]:
    """The first `limit` items of each suite or JSON Lines file, in turn from all of them.

    A line of a file is {"prompt": text}, {"messages": [...]}, or a question as `load_suite` reads it.
    Raises ConfigError naming file and line.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is {limit}; it must be at least 1")
    lists = [_load(name, limit) for name in dict.fromkeys(map(str, names))]
    if not lists:
        raise ConfigError(f"no prompts are named; give a suite ({', '.join(SUITES)}) or a JSONL file")
    longest = max(map(len, lists))
    return [items[at] for at in range(longest) for items in lists if at < len(items)]


def task_items(name: str, limit: int | None = None, data: Mapping[str, str] | None = None) -> list[Item]:
    """The prompts of a task of lm-evaluation-harness, as it would ask them.

    data: files for tasks that ask for them by name, such as {"gsm8k": "test.jsonl"}. Raises ConfigError.
    """
    if find_spec("lm_eval") is None:
        raise ConfigError("tasks need lm-evaluation-harness; run: pip install 'simsd[eval]'")
    from simsd.evaluation.harness_run import task_prompts

    return [Item(prompt, source=name) for prompt in task_prompts(name, limit, data=data)]


def _load(name: str, limit: int | None) -> list[Item]:
    if name not in SUITES and (rows := _prompt_rows(Path(name), limit)) is not None:
        return rows
    return [Item(messages(q), q, Path(name).stem) for q in load_suite(name, limit)]


def _prompt_rows(path: Path, limit: int | None) -> list[Item] | None:
    """Items of a file of prompts or conversations; None if it holds questions, or cannot be read as either."""
    try:
        text = path.read_text("utf-8")
        lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
        first = json.loads(lines[0][1]) if lines else None
    except (OSError, ValueError):
        return None  # `load_suite` says what is wrong
    if not isinstance(first, dict) or not {"prompt", "messages"} & set(first):
        return None
    return [_prompt_row(path, number, line) for number, line in lines[:limit]]


def _prompt_row(path: Path, number: int, line: str) -> Item:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{path}, line {number}: not JSON ({error})") from error
    prompt = row.get("prompt", row.get("messages")) if isinstance(row, Mapping) else None
    if isinstance(prompt, str) and prompt:
        return Item(prompt, source=path.stem)
    if isinstance(prompt, list) and prompt and all(isinstance(m, dict) and "content" in m for m in prompt):
        return Item(prompt, source=path.stem)
    raise ConfigError(f"{path}, line {number}: needs 'prompt', a text, or 'messages', a conversation")


def lengths(llm: LLM, items: Sequence[Item]) -> list[int]:
    """Tokens of each prompt. Raises PromptError naming the first that cannot be decoded, before any is."""
    found = []
    for number, item in enumerate(items, start=1):
        try:
            found.append(len(prompt_ids(_prompt(llm, item), llm.tokenizer, llm.config, llm.max_model_len)))
        except PromptError as error:
            raise PromptError(f"prompt {number} ({item.source}): {error}") from error
    return found


def ask(llm: LLM, items: Sequence[Item], params: Sequence[SamplingParams]) -> list[Completion]:
    """Decodes the items as one batch; conversations go through the chat template where the checkpoint has one."""
    prompts: list[Any] = [_prompt(llm, item) for item in items]
    return llm.generate(prompts, list(params))


def _prompt(llm: LLM, item: Item) -> str | list[int]:
    if isinstance(item.prompt, str):
        return item.prompt
    if llm.tokenizer.chat_template is None:
        return "\n\n".join(message["content"] for message in item.prompt)
    return llm.tokenizer.apply_chat_template(item.prompt)


def fingerprint(items: Sequence[Item]) -> str:
    """Equal for equal prompts and right answers in the same order."""
    text = json.dumps([[item.prompt, item.question and asdict(item.question)] for item in items], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
