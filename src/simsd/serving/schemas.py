"""What clients send: OpenAI's fields, those that change nothing here, and the extension `simsd`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from simsd.engine.options import MOST_DRAFTED, SamplingParams
from simsd.serving.errors import ApiError
from simsd.serving.logs import shortened

# Fields that may have any value, since they do not change the text.
HARMLESS = frozenset(
    "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention parallel_tool_calls "
    "prediction".split()
)

# Fields of features that are not here, with the values that do not ask for them; null never does.
NEUTRAL: Mapping[str, Sequence[Any]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
}

MOST_CHOICES = 128
MOST_STOPS, LONGEST_STOP = 16, 256  # looked for in every round, at the cost of all who share it
UNLIMITED = 2**31


class Extension(BaseModel):
    """The key `simsd`: how to decode this request, and what its stream carries besides text.

    method, drafter, num_speculative_tokens, draft_steps, states: as the keyword arguments of `LLM`.
    The schedule, top_k, stop_token_ids, ignore_eos: as in `SamplingParams`.
    stream_steps: chunks carry token ids and their reveal steps. stream_rounds: a chunk a round, with the block's state.
    stream_layouts: such a chunk also has the rows of the target's forward, and which sees which.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    method: str | None = None
    drafter: str | None = None
    num_speculative_tokens: int | str | None = None
    draft_steps: int | None = None
    states: str | None = None
    remasking_strategy: str | None = None
    confidence_threshold: float | None = None
    eb_threshold: float | None = None
    denoising_steps: int | None = None
    top_k: int | None = None
    stop_token_ids: list[int] | None = Field(default=None, max_length=1024)
    ignore_eos: bool | None = None
    stream_steps: bool = False
    stream_rounds: bool = False
    stream_layouts: bool = False

    @field_validator("num_speculative_tokens")
    @classmethod
    def _bounded_window(cls, value: int | str | None) -> int | str | None:
        if value is not None and value != "auto" and (isinstance(value, str) or value > MOST_DRAFTED):
            raise ValueError(f"{value!r} tokens are asked for; give 1 to {MOST_DRAFTED}, or 'auto'")
        return value

    def decoding(self) -> dict[str, Any]:
        """The options given that belong to an `LLM`."""
        return self._given("method", "drafter", "num_speculative_tokens", "draft_steps", "states")

    def sampling(self) -> dict[str, Any]:
        """The options given that belong to the request's `SamplingParams`."""
        schedule = ("remasking_strategy", "confidence_threshold", "eb_threshold", "denoising_steps")
        return self._given(*schedule, "top_k", "stop_token_ids", "ignore_eos")

    def _given(self, *names: str) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # pads chunks at OpenAI; nothing to do here


class ApiRequest(BaseModel):
    """What both endpoints share. Types are strict: "5" is not 5."""

    model_config = ConfigDict(strict=True, extra="allow")

    DEFAULT_TOKENS: ClassVar[int]
    PROMPT: ClassVar[str]  # the field that holds it

    model: str | None = None
    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES)
    stop: str | list[str] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    simsd: Extension = Field(default_factory=Extension)

    @field_validator("simsd", mode="before")
    @classmethod
    def _no_extension(cls, value: Any) -> Any:
        return {} if value is None else value

    @field_validator("stop")
    @classmethod
    def _bounded_stop(cls, value: str | list[str] | None) -> str | list[str] | None:
        texts = [value] if isinstance(value, str) else value or []
        if len(texts) > MOST_STOPS or any(len(text) > LONGEST_STOP for text in texts):
            raise ValueError(f"at most {MOST_STOPS} strings of {LONGEST_STOP} characters may stop the text")
        return value

    @model_validator(mode="after")
    def _known_fields(self) -> ApiRequest:
        for name, value in (self.model_extra or {}).items():
            if name in HARMLESS or value is None:
                continue
            if name not in NEUTRAL:
                raise ApiError(
                    f"unknown field {shortened(name)!r}; options of this server's own go under 'simsd'", param=name
                )
            if value not in NEUTRAL[name]:
                raise ApiError(f"{name} is not supported by this server; leave it out", param=name)
        if not self.stream and self.stream_options is not None:
            raise ApiError("stream_options needs 'stream': true", param="stream_options")
        if not self.stream and (self.simsd.stream_steps or self.simsd.stream_rounds):
            raise ApiError("simsd.stream_steps and simsd.stream_rounds need 'stream': true", param="simsd")
        if self.simsd.stream_layouts and not self.simsd.stream_rounds:
            raise ApiError("simsd.stream_layouts needs 'stream_rounds': true, whose chunks it adds to", param="simsd")
        return self

    @property
    def choices(self) -> int:
        """Answers to each prompt."""
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        """The stream ends with a chunk of counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wants_logprobs(self) -> bool:
        raise NotImplementedError

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    def field_of(self, option: str) -> str | None:
        """Where a request has this option of the library; None where it has it nowhere."""
        if option in ApiRequest.model_fields:
            return option
        return f"simsd.{option}" if option in Extension.model_fields else None

    def sampling(self, defaults: SamplingParams, max_tokens: int | None, choice: int) -> SamplingParams:
        """The parameters of one answer; each of several has a seed of its own.

        defaults, max_tokens: the operator's, for what the request does not say.
        """
        given: dict[str, Any] = {name: getattr(self, name) for name in ("stop", "seed", "temperature", "top_p")}
        given |= {"max_tokens": self.most_tokens} | self.simsd.sampling()
        defaults = replace(defaults, max_tokens=max_tokens or self.DEFAULT_TOKENS, logprobs=self.wants_logprobs)
        params = replace(defaults, **{name: value for name, value in given.items() if value is not None})
        return params if params.seed is None else replace(params, seed=(params.seed + choice) % 2**63)


class TextPart(BaseModel):
    model_config = ConfigDict(strict=True)

    type: Literal["text"]
    text: str


class Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    @model_validator(mode="after")
    def _no_calls(self) -> Message:
        if any((self.model_extra or {}).get(name) for name in ("tool_calls", "function_call", "audio")):
            raise ValueError("tool calls and audio are not supported by this server; send text alone")
        return self

    def to_dict(self) -> dict[str, str]:
        """As chat templates take it: they know "system" and not its newer name."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatRequest(ApiRequest):
    """POST /v1/chat/completions."""

    DEFAULT_TOKENS = UNLIMITED
    PROMPT = "messages"

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    @field_validator("top_logprobs")
    @classmethod
    def _no_alternatives(cls, value: int | None) -> int | None:
        if value:
            raise ValueError(f"{value} alternatives are asked for, but only the chosen token is known; leave it out")
        return value

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.logprobs)

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def field_of(self, option: str) -> str | None:
        newer = option == "max_tokens" and self.max_completion_tokens is not None
        return "max_completion_tokens" if newer else super().field_of(option)

    @property
    def prompts(self) -> list[list[dict[str, str]]]:
        """One conversation."""
        return [[message.to_dict() for message in self.messages]]


class CompletionRequest(ApiRequest):
    """POST /v1/completions."""

    DEFAULT_TOKENS = 16
    PROMPT = "prompt"

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: int | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _one_kind(cls, value: Any) -> Any:
        if isinstance(value, list) and len({type(one) for one in value}) > 1:
            raise ValueError("its items are of several kinds; give a text, token ids, or a list of either")
        return value

    @field_validator("logprobs")
    @classmethod
    def _no_alternatives(cls, value: int | None) -> int | None:
        if value not in (None, 0, 1):
            raise ValueError(f"{value} are asked for, but only the chosen token is known; use 1")
        return value

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Texts, or ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]
        return list(self.prompt)  # type: ignore[arg-type]


R = TypeVar("R", bound=ApiRequest)


def parse(kind: type[R], content_type: str, body: bytes) -> R:
    """The request in a body. Raises ApiError, naming the field that is wrong."""
    # a page of another site may send any other type without asking the browser's leave
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise ApiError(f"the content type is {shortened(content_type)!r}; send application/json", status=415)
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _explain(error) from None


def _explain(error: ValidationError) -> ApiError:
    # where a field takes one of several types, the one that went deepest is the one that was meant
    every = error.errors(include_url=False, include_context=False, include_input=False)
    found = max(every, key=lambda one: len(one["loc"]))
    if found["type"] == "json_invalid":
        return ApiError(f"the body is not JSON: {found['msg'].removeprefix('Invalid JSON: ')}", code="invalid_json")
    told = {"missing": "is missing", "extra_forbidden": "unknown field"}
    message = told.get(found["type"], found["msg"].removeprefix("Value error, "))
    name = ".".join(str(part) for part in found["loc"] if not _names_a_type(str(part)))
    return ApiError(f"{name}: {message}" if name else message, param=name or None)


def _names_a_type(part: str) -> bool:
    return part in ("str", "int", "TextPart") or part.startswith("list[")
