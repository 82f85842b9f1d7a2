"""What clients get: OpenAI's objects for the two endpoints, whole and in chunks, as plain dictionaries."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from simsd.engine.completion import Completion, Piece
from simsd.engine.request import Stats
from simsd.llm import LLM
from simsd.models.tokenizer import Tokenizer

Json = dict[str, Any]

DONE = b"data: [DONE]\n\n"


def sse(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


@dataclass(frozen=True)
class Endpoint:
    """One response's envelope. The subclasses say what a choice looks like.

    method: the decoding method that answered. token: makes the response's id.
    """

    model: str
    method: str
    tokenizer: Tokenizer
    created: int = field(default_factory=lambda: int(time.time()))
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    PREFIX = ""
    WHOLE = ""
    CHUNK = ""

    def whole(self, completions: Sequence[Completion], prompts: int) -> Json:
        """The response to `prompts` prompts, with the same number of completions each."""
        choices = [self._choice(index, completion) for index, completion in enumerate(completions)]
        return self._envelope(self.WHOLE, choices) | {
            "usage": usage(completions, prompts),
            "simsd": self.extension(completions),
        }

    def chunk(self, choices: Sequence[Json], **more: Any) -> Json:
        return self._envelope(self.CHUNK, choices) | more

    def extension(self, completions: Sequence[Completion]) -> Json:
        """The key `simsd` of a response: the method, and the statistics of all choices together."""
        return {"method": self.method, "stats": Stats.sum(c.stats for c in completions).to_dict()}

    def steps_of(self, piece: Piece) -> Json:
        """The extension of a chunk with `stream_steps`."""
        return {"token_ids": piece.token_ids, "steps": piece.steps}

    def delta(self, index: int, piece: Piece, offset: int) -> list[Json]:
        """The choices, a chunk each, that hand out a piece. offset: characters of this choice sent before."""
        raise NotImplementedError

    def first(self, index: int) -> list[Json]:
        """The choices, a chunk each, that begin an answer."""
        return []

    def _choice(self, index: int, completion: Completion) -> Json:
        raise NotImplementedError

    def _envelope(self, kind: str, choices: Sequence[Json]) -> Json:
        head = {"id": f"{self.PREFIX}-{self.token}", "object": kind, "created": self.created, "model": self.model}
        return head | {"choices": list(choices)}


class ChatEndpoint(Endpoint):
    PREFIX = "chatcmpl"
    WHOLE = "chat.completion"
    CHUNK = "chat.completion.chunk"

    def first(self, index: int) -> list[Json]:
        return [_chat_delta(index, {"role": "assistant", "content": ""})]

    def delta(self, index: int, piece: Piece, offset: int) -> list[Json]:
        logprobs = self._logprobs(piece.token_ids, piece.logprobs)
        found = [_chat_delta(index, {"content": piece.text}, logprobs)] if piece.text or piece.token_ids else []
        if piece.completion is not None:
            found.append(_chat_delta(index, {}, finish_reason=piece.completion.finish_reason))
        return found

    def _choice(self, index: int, completion: Completion) -> Json:
        return {
            "index": index,
            "message": {"role": "assistant", "content": completion.text, "refusal": None},
            "logprobs": self._logprobs(completion.token_ids, completion.logprobs),
            "finish_reason": completion.finish_reason,
        }

    def _logprobs(self, ids: Sequence[int], logprobs: Sequence[float] | None) -> Json | None:
        if logprobs is None:
            return None
        content = []
        for token_id, value in zip(ids, logprobs, strict=True):
            text = self.tokenizer.token(token_id)
            # a token that is part of a character has no text of its own, so its bytes are not known from it
            data = None if "\ufffd" in text else list(text.encode())
            content.append({"token": text, "logprob": value, "bytes": data, "top_logprobs": []})
        return {"content": content, "refusal": None}


class CompletionEndpoint(Endpoint):
    PREFIX = "cmpl"
    WHOLE = "text_completion"
    CHUNK = "text_completion"

    def delta(self, index: int, piece: Piece, offset: int) -> list[Json]:
        reason = piece.completion.finish_reason if piece.completion is not None else None
        logprobs = self._logprobs(piece.token_ids, piece.logprobs, offset)
        return [{"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": reason}]

    def _choice(self, index: int, completion: Completion) -> Json:
        return {
            "index": index,
            "text": completion.text,
            "logprobs": self._logprobs(completion.token_ids, completion.logprobs, 0),
            "finish_reason": completion.finish_reason,
        }

    def _logprobs(self, ids: Sequence[int], logprobs: Sequence[float] | None, offset: int) -> Json | None:
        if logprobs is None:
            return None
        tokens = [self.tokenizer.token(token_id) for token_id in ids]
        text, offsets = self.tokenizer.incremental(), []
        for token_id in ids:
            offsets.append(offset)
            offset += len(text.push([token_id]))
        top = [{token: value} for token, value in zip(tokens, logprobs, strict=True)]
        return {"tokens": tokens, "token_logprobs": list(logprobs), "top_logprobs": top, "text_offset": offsets}


def usage(completions: Sequence[Completion], prompts: int) -> Json:
    """Token counts; each of the `prompts` prompts counts once, however many answers it gets."""
    each = len(completions) // prompts
    prompt = sum(completion.stats.prompt_tokens for completion in completions[::each])
    answer = sum(completion.stats.tokens for completion in completions)
    cached = sum(completion.stats.cached_tokens for completion in completions[::each])
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def model_card(name: str, created: int, llm: LLM, temperature: float) -> Json:
    """The object of a model: OpenAI's fields, vLLM's `max_model_len`, and the server's own defaults."""
    options = asdict(llm.options)
    shown = ("method", "num_speculative_tokens", "block_length", "remasking_strategy")
    own = {"embedded": llm.embedded, "temperature": temperature} | {key: options[key] for key in shown}
    card = {"id": name, "object": "model", "created": created, "owned_by": "simsd"}
    return card | {"max_model_len": llm.max_model_len, "simsd": own}


def _chat_delta(index: int, delta: Json, logprobs: Json | None = None, finish_reason: str | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
