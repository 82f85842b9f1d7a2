"""Every decoding flag, written once: the fields of `Decoding` become the options of each command that takes one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from simsd.errors import ConfigError

if TYPE_CHECKING:
    from simsd.llm import SamplingParams

METHODS = ("none", "simsd", "exact", "exact-draft-order")
LAYOUTS = ("paired", "unrolled")
ACCEPTANCES = ("rejection", "match", "replay")
DRAFTERS = ("model", "hybrid", "self", "trajectory", "lookup")
STATES = ("chain", "swaps", "subsets", "likely")
STRATEGIES = ("low_confidence_static", "low_confidence_dynamic", "sequential", "entropy_bounded", "random")
MOST_DRAFTED = 64
MOST_THREADS = 1024  # far more end the process in the thread library
DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
QUANTIZE = ("none", "int8-draft", "int8")

_MODEL, _SPECULATION, _SCHEDULE, _SAMPLING = "Model", "Speculative decoding", "Denoising schedule", "Sampling"


def _flag(name: str, text: str, panel: str, choices: Sequence[str] = (), **more: Any) -> Any:
    """A typer option whose default, None, means "the engine's own": the default is told in the text.

    Choices are checked by `_check_choices` and not by typer, so that all versions of typer say the same sentence.
    """
    if choices:
        text = f"{text} One of: {', '.join(choices)}."
        more |= {
            "metavar": "NAME",
            "autocompletion": lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)],
        }
    return typer.Option(name, help=text, rich_help_panel=panel, show_default=False, **more)


@dataclass(frozen=True)
class Decoding:
    """What the user asked for; None where the engine's (or the checkpoint's) default holds."""

    model: Annotated[
        str | None,
        _flag("--model", "Target model: a folder or a hub name. Default: the embedded pair.", _MODEL),
    ] = None
    draft_model: Annotated[
        str | None, _flag("--draft-model", "Draft model: a folder or a hub name; the same tokenizer.", _MODEL)
    ] = None
    mask_token_id: Annotated[int | None, _flag("--mask-token-id", "Id of MASK. Default: the checkpoint's.", _MODEL)] = (
        None
    )
    dtype: Annotated[str | None, _flag("--dtype", "Number format. Default: auto.", _MODEL, DTYPES)] = None
    device: Annotated[str | None, _flag("--device", "auto (the default), cpu, cuda or cuda:N.", _MODEL)] = None
    draft_device: Annotated[
        str | None, _flag("--draft-device", "The draft model's device. Default: the target's.", _MODEL)
    ] = None
    quantize: Annotated[
        str | None,
        _flag("--quantize", "int8 weights: of no model (default), the draft model, both models.", _MODEL, QUANTIZE),
    ] = None
    tensor_parallel_size: Annotated[
        int | None,
        _flag("--tensor-parallel-size", "Split both models among this many GPUs or processes. Default: 1.", _MODEL),
    ] = None
    draft_ahead: Annotated[
        bool | None,
        _flag(
            "--draft-ahead/--no-draft-ahead",
            "Draft the next window while the target verifies. Default: where --draft-device is another device.",
            _MODEL,
        ),
    ] = None
    enforce_eager: Annotated[
        bool, typer.Option("--enforce-eager", help="Record no CUDA graphs.", rich_help_panel=_MODEL)
    ] = False
    threads: Annotated[int | None, _flag("--threads", "CPU threads. Default: all cores.", _MODEL)] = None
    method: Annotated[
        str | None,
        _flag(
            "--method",
            "none is ordinary decoding; simsd is the paper's method, approximate; exact gives the same text as none; "
            "exact-draft-order gives the target's distribution. Default: exact with a draft model, else none.",
            _SPECULATION,
            METHODS,
        ),
    ] = None
    layout: Annotated[
        str | None, _flag("--layout", "Verification layout, if other than the method's.", _SPECULATION, LAYOUTS)
    ] = None
    acceptance: Annotated[
        str | None, _flag("--acceptance", "Acceptance rule, if other than the method's.", _SPECULATION, ACCEPTANCES)
    ] = None
    drafter: Annotated[str | None, _flag("--drafter", "Where drafts come from.", _SPECULATION, DRAFTERS)] = None
    states: Annotated[
        str | None, _flag("--states", "Which states one pass verifies (unrolled layout).", _SPECULATION, STATES)
    ] = None
    num_speculative_tokens: Annotated[
        str | None,
        _flag(
            "--num-speculative-tokens",
            "Most tokens drafted in a round. Default: auto.",
            _SPECULATION,
            metavar="<int|auto>",
        ),
    ] = None
    draft_steps: Annotated[
        int | None, _flag("--draft-steps", "Draft forwards for each block. Default: 1.", _SPECULATION)
    ] = None
    block_length: Annotated[
        int | None, _flag("--block-length", "Tokens in a block. Default: the checkpoint's.", _SCHEDULE)
    ] = None
    denoising_steps: Annotated[
        int | None, _flag("--denoising-steps", "Steps that fill a block. Default: one for each token.", _SCHEDULE)
    ] = None
    remasking_strategy: Annotated[
        str | None,
        _flag(
            "--remasking-strategy",
            "Which places a step reveals. Default: low_confidence_static.",
            _SCHEDULE,
            STRATEGIES,
        ),
    ] = None
    confidence_threshold: Annotated[
        float | None,
        _flag("--confidence-threshold", "For low_confidence_dynamic. Default: 0.9.", _SCHEDULE),
    ] = None
    eb_threshold: Annotated[
        float | None, _flag("--eb-threshold", "Entropy that one step may reveal, for entropy_bounded.", _SCHEDULE)
    ] = None
    max_tokens: Annotated[int | None, _flag("--max-tokens", "Longest answer. Default: 256.", _SAMPLING)] = None
    temperature: Annotated[float | None, _flag("--temperature", "0, the default, is greedy.", _SAMPLING)] = None
    top_k: Annotated[int | None, _flag("--top-k", "0, the default, is off.", _SAMPLING)] = None
    top_p: Annotated[float | None, _flag("--top-p", "1, the default, is off.", _SAMPLING)] = None
    seed: Annotated[int | None, _flag("--seed", "Seed of the request's noise.", _SAMPLING)] = None
    stop: Annotated[
        list[str] | None, _flag("--stop", "Ends the answer before this text; may be repeated.", _SAMPLING)
    ] = None
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after a stop token.", rich_help_panel=_SAMPLING)
    ] = False

    def __post_init__(self) -> None:
        _check_choices("--method", self.method, METHODS)
        _check_choices("--layout", self.layout, LAYOUTS)
        _check_choices("--acceptance", self.acceptance, ACCEPTANCES)
        _check_choices("--drafter", self.drafter, DRAFTERS)
        _check_choices("--states", self.states, STATES)
        _check_choices("--remasking-strategy", self.remasking_strategy, STRATEGIES)
        _check_choices("--dtype", self.dtype, DTYPES)
        _check_choices("--quantize", self.quantize, QUANTIZE)
        if self.num_speculative_tokens is not None:
            window("--num-speculative-tokens", self.num_speculative_tokens)
        if self.tensor_parallel_size is not None and self.tensor_parallel_size < 1:
            raise ConfigError(f"--tensor-parallel-size is {self.tensor_parallel_size}; it must be 1 or more.")
        if self.mask_token_id is not None and self.mask_token_id < 0:
            raise ConfigError(f"--mask-token-id is {self.mask_token_id}; it must be 0 or more.")
        if self.threads is not None and not 1 <= self.threads <= MOST_THREADS:
            raise ConfigError(f"--threads is {self.threads}; give 1 to {MOST_THREADS}.")

    def llm_options(self) -> dict[str, Any]:
        """Keyword arguments of `LLM` that were given on the command line (`model` among them)."""
        given = self._given(_LLM_NAMES)
        if (drafted := given.get("num_speculative_tokens")) is not None:
            given["num_speculative_tokens"] = window("--num-speculative-tokens", drafted)
        return given

    def sampling_params(self, **defaults: Any) -> SamplingParams:
        """The request's parameters; the schedule is not repeated here, it is the LLM's."""
        from simsd.llm import SamplingParams

        return SamplingParams(**(defaults | self._given(_SAMPLING_NAMES)))

    def _given(self, names: Iterable[str]) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not _DEFAULTS[name]}


_DEFAULTS = {f.name: f.default for f in fields(Decoding)}
_SAMPLING_NAMES = ("max_tokens", "temperature", "top_k", "top_p", "seed", "stop", "ignore_eos")
_LLM_NAMES = tuple(f.name for f in fields(Decoding) if f.name not in (*_SAMPLING_NAMES, "threads"))


def _check_choices(flag: str, value: str | None, choices: Sequence[str]) -> None:
    if value is not None and value not in choices:
        raise ConfigError(f"{flag} is {value!r}; choose one of {', '.join(choices)}.")


def window(flag: str, word: str, verb: str = "is") -> int | str:
    """A draft window as it is typed: "auto", or a number of tokens. Raises ConfigError."""
    if word == "auto":
        return word
    number = int(word) if word.isascii() and word.isdigit() and len(word) < 10 else 0
    if not 1 <= number <= MOST_DRAFTED:
        raise ConfigError(f"{flag} {verb} {word!r}; give auto, or a whole number from 1 to {MOST_DRAFTED}.")
    return number


def decoding_options(only: Sequence[str] | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replaces the parameter `options: Decoding` of a command by one flag for each field of `Decoding`.

    `only` keeps the named ones, for commands that settle the others themselves.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        chosen = [f for f in fields(Decoding) if only is None or f.name in only]
        own_hints = get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(annotation=own_hints[name])
            for name, parameter in inspect.signature(command).parameters.items()
            if name != "options"
        ]
        hints = get_type_hints(Decoding, include_extras=True)
        flags = [_KEYWORD(f.name, default=f.default, annotation=hints[f.name]) for f in chosen]

        @wraps(command)
        def wrapper(**values: Any) -> None:
            options = Decoding(**{f.name: values.pop(f.name) for f in chosen})
            command(options=options, **values)

        parameters = [*own, *flags]
        wrapper.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        del wrapper.__wrapped__  # typer would read the hints of the wrapped function instead
        return wrapper

    return decorate


_KEYWORD = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
