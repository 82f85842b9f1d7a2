"""An engine that answers at once: the prompt in capitals, and an error for prompts that hold "bad"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from simsd.engine.options import DecodingOptions
from simsd.engine.request import Stats
from simsd.engine.trace import LayoutTrace, RoundTrace
from simsd.errors import PromptError
from simsd.llm import Completion, Piece, SamplingParams

MASK = 1


def round_trace(index: int = 0, text: str = "ok") -> RoundTrace:
    """A round over one block of four: known, accepted, corrected, rejected."""
    a, b = (ord(char) for char in text[:2])
    labels = ["D0"] * 4 + ["M0"] * 4
    return RoundTrace(
        index=index,
        block_start=4 * index,
        block_length=4,
        mask_token_id=MASK,
        before=[a, MASK, MASK, MASK],
        drafted=[MASK, b, a, b],
        draft_step=[0, 1, 2, 3],
        after=[a, b, b, MASK],
        verdict=["known", "accepted", "corrected", "rejected"],
        finished_blocks=0,
        layout=LayoutTrace(
            ids=[a, b, a, b, MASK, MASK, MASK, MASK],
            positions=[0, 1, 2, 3, 0, 1, 2, 3],
            labels=labels,
            mask=[[row >= column for column in range(8)] for row in range(8)],
            prefix_length=12,
        ),
    )


@dataclass
class FakeTokenizer:
    chat_template: str | None = "a template"

    def token(self, token_id: int) -> str:
        return chr(token_id)


@dataclass
class FakeLLM:
    """`made` are the keyword arguments it was made with; `calls` the requests it got."""

    made: dict[str, Any] = field(default_factory=dict)
    calls: list[tuple[str, Any, SamplingParams]] = field(default_factory=list)
    tokenizer: FakeTokenizer = field(default_factory=FakeTokenizer)
    interrupt: bool = False
    embedded: bool = False

    @property
    def options(self) -> DecodingOptions:
        known = {f.name for f in fields(DecodingOptions)}
        return DecodingOptions(**{k: v for k, v in self.made.items() if k in known}).resolve(has_draft_model=True)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def with_options(self, **changes: Any) -> FakeLLM:
        return FakeLLM(self.made | changes, self.calls, self.tokenizer)

    def generate(self, prompts: Any, params: SamplingParams) -> list[Completion]:
        self.calls.append(("generate", prompts, params))
        return self._answers(prompts, isinstance(prompts, str))

    def chat(self, messages: Any, params: SamplingParams) -> list[Completion]:
        self.calls.append(("chat", messages, params))
        single = isinstance(messages[0], dict)
        texts = [conversation[-1]["content"] for conversation in ([messages] if single else messages)]
        return self._answers(texts[0] if single else texts, single)

    def stream(self, messages: Any, params: SamplingParams) -> Iterator[Piece]:
        self.calls.append(("stream", messages, params))
        done = self._answers(messages[-1]["content"], True)[0]
        return self._pieces(done)

    def _pieces(self, done: Completion) -> Iterator[Piece]:
        half = len(done.text) // 2
        yield Piece(done.text[:half], done.token_ids[:half])
        if self.interrupt:
            raise KeyboardInterrupt
        yield Piece(done.text[half:], done.token_ids[half:], done)

    def _answers(self, prompts: Any, single: bool) -> list[Completion]:
        return [self._answer(text, single) for text in ([prompts] if single else prompts)]

    def _answer(self, text: str, single: bool) -> Completion:
        if "bad" in text:
            error = PromptError(f"the prompt {text!r} is bad; ask another one")
            if single:
                raise error
            return Completion(text, "", [], "error", error=error)
        answer = text.upper()
        stats = Stats(tokens=len(answer), target_forwards=2, drafted_tokens=4, accepted_tokens=3, seconds=0.5)
        trace = [round_trace(i) for i in range(2)] if self.made.get("trace") else None
        ids = [ord(char) for char in answer]
        return Completion(text, answer, ids, "stop", [0] * len(ids), stats=stats, trace=trace)
