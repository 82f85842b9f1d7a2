"""What a user may set, checked: how the library decodes, and how one request samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any

from simsd.core.schedule import STRATEGIES, quotas
from simsd.core.states import KINDS
from simsd.errors import ConfigError

METHODS = ("none", "simsd", "exact", "exact-draft-order")
LAYOUTS = ("paired", "unrolled")
ACCEPTANCES = ("rejection", "match", "replay")
DRAFTERS = ("model", "hybrid", "self", "trajectory", "lookup")

MOST_DRAFTED = 64  # tokens a round: as many states of a block, and at the longest block length 4096 rows of the target

# Temperatures below the first are greedy, and beyond the second a mistake: scaled logits would not be numbers.
COLDEST, HOTTEST = 1e-6, 1e6

# Method -> layout, acceptance (method section 5). "rejection" is "match" for a greedy request.
PAIRS = {
    "none": ("unrolled", "replay"),
    "simsd": ("paired", "rejection"),
    "exact": ("unrolled", "replay"),
    "exact-draft-order": ("unrolled", "rejection"),
}


def choose(name: str, value: str, allowed: Sequence[str]) -> str:
    """The value, if it is one of those allowed."""
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}; choose one of {', '.join(allowed)}", name)
    return value


def whole(name: str, value: Any, least: int, hint: str = "", most: int | None = None) -> None:
    """Refuses what is not a whole number of at least `least`, and at most `most`, if that is given."""
    counts = isinstance(value, Integral) and not isinstance(value, bool)
    if not counts or int(value) < least or (most is not None and int(value) > most):
        bounds = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name} is {value!r}; it must be a whole number {bounds}{hint}", name)


def number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    """Refuses what is not a number from low to high."""
    try:
        given = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        given = math.inf
    if not low <= given <= high or (open_low and given == low) or math.isinf(given):
        bounds = f"in ({low:g}, {high:g}]" if open_low else f"from {low:g} to {high:g}"
        bounds = bounds if math.isfinite(high) else f"{'above' if open_low else 'at least'} {low:g}"
        raise ConfigError(f"{name} is {value!r}; it must be a number {bounds}", name)


def truth(name: str, value: Any) -> None:
    """Refuses what is not True or False: "no" would count as true."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; it must be True or False", name)


# Arguments of `LLM` that settle what is loaded, and how.
LOADING = (
    *("model", "draft_model", "dtype", "device", "draft_device", "quantize", "tensor_parallel_size"),
    *("mask_token_id", "tokenizer", "shifted_logits"),
)


def check_names(names: Iterable[str]) -> None:
    """Refuses names that are no decoding options. Raises ConfigError."""
    for name in sorted(set(names) - {f.name for f in fields(DecodingOptions)}):
        if name in LOADING:
            raise ConfigError(f"{name} is fixed when the model is loaded; give it to LLM(...)", name)
        if name == "threads":
            raise ConfigError("threads is no option in Python; call torch.set_num_threads", name)
        raise ConfigError(f"unknown option {name!r}; see simsd.engine.options.DecodingOptions")


@dataclass(frozen=True)
class DecodingOptions:
    """How to decode: method, draft and schedule. `resolve` fills in what depends on the method.

    num_speculative_tokens: the draft window gamma in tokens, at most `MOST_DRAFTED`, or "auto": then method "exact"
        measures what pays, and the others, whose text may depend on the window, draft one block (`paired`) or two
        (`unrolled`).
    position_copy: False runs the paper's ablation of the paired layout.
    """

    method: str = "exact"
    layout: str | None = None
    acceptance: str | None = None
    drafter: str | None = None
    states: str | None = None
    num_speculative_tokens: int | str = "auto"
    draft_steps: int = 1
    block_length: int = 4
    denoising_steps: int | None = None
    remasking_strategy: str = "low_confidence_static"
    confidence_threshold: float = 0.9
    eb_threshold: float = 0.1
    position_copy: bool = True

    @property
    def adaptive(self) -> bool:
        """Whether the engine chooses window and states by what pays (`engine.auto`), which changes no text."""
        return (
            (self.method, self.acceptance, self.states) == ("exact", "replay", None)
            and self.num_speculative_tokens == "auto"
            and self.drafter in ("model", "hybrid", "self")
        )

    def changed(self, given: Mapping[str, Any]) -> DecodingOptions:
        """With other values; another method comes with its own layout, unless that is given too. Raises ConfigError."""
        check_names(given)
        base = self
        if given.get("method", self.method) != self.method:
            base = replace(self, layout=None, acceptance=None, states=None)
        return replace(base, **given)

    def resolve(self, has_draft_model: bool) -> DecodingOptions:
        """Checks everything and fills in layout, acceptance and drafter. Raises ConfigError."""
        choose("method", self.method, METHODS)
        layout, acceptance = PAIRS[self.method]
        layout = choose("layout", self.layout or layout, LAYOUTS)
        acceptance = choose("acceptance", self.acceptance or acceptance, ACCEPTANCES)
        if self.method == "none" and (layout, acceptance) != PAIRS["none"]:
            raise ConfigError(
                "method 'none' is ordinary decoding and takes no layout or acceptance; choose another method"
            )
        if layout == "paired" and acceptance == "replay":
            raise ConfigError(
                "acceptance 'replay' needs the logits of whole states, which layout 'paired' does not give; "
                "use layout 'unrolled', or acceptance 'rejection' or 'match'"
            )
        if self.states is not None:
            choose("states", self.states, KINDS)
            if acceptance != "replay" and self.states != "chain":
                raise ConfigError(
                    f"states {self.states!r} needs acceptance 'replay'; in the draft's order there is only the chain",
                    "states",
                )
        # under replay the target's own logits may help the draft model; the paper's case is the draft model alone
        with_model = "hybrid" if acceptance == "replay" else "model"
        drafter = choose("drafter", self.drafter or (with_model if has_draft_model else "self"), DRAFTERS)
        if drafter in ("model", "hybrid") and not has_draft_model and self.method != "none":
            raise ConfigError(
                f"drafter {drafter!r} needs a draft model; give one, or choose drafter 'self' or 'lookup'", "drafter"
            )
        if self.num_speculative_tokens != "auto":
            hint = ", or 'auto'; 'none' is a method"
            whole("num_speculative_tokens", self.num_speculative_tokens, 1, hint, MOST_DRAFTED)
        truth("position_copy", self.position_copy)
        whole("block_length", self.block_length, 1)
        whole("draft_steps", self.draft_steps, 1)
        if self.draft_steps > self.block_length:
            raise ConfigError(
                f"draft_steps is {self.draft_steps}; it must be from 1 to the block length {self.block_length}",
                "draft_steps",
            )
        resolved = replace(self, layout=layout, acceptance=acceptance, drafter=drafter)
        check_schedule(resolved)
        return resolved


@dataclass(frozen=True)
class SamplingParams:
    """How one request samples and when it stops. None means: as the `LLM` was set up.

    temperature: 0 (or less than 1e-6) is greedy. top_k: 0 is off. top_p: in (0, 1]. seed: None draws a fresh one.
    stop: strings that end the text (not part of it). stop_token_ids: ids, besides the checkpoint's own.
    ignore_eos: goes on past the checkpoint's own stop ids, up to max_tokens.
    logprobs: also return log p of each token under the target's softmax at temperature 1.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: bool = False
    denoising_steps: int | None = None
    remasking_strategy: str | None = None
    confidence_threshold: float | None = None
    eb_threshold: float | None = None

    def resolve(self, options: DecodingOptions, seed: int, vocab_size: int | None = None) -> SamplingParams:
        """Checks everything (ids too, where the vocabulary is known) and fills in what the options say.

        Raises: ConfigError.
        """
        whole("max_tokens", self.max_tokens, 1)
        number("temperature", self.temperature, 0.0, HOTTEST)
        whole("top_k", self.top_k, 0, " (0 switches it off)")
        number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        if self.seed is not None:
            whole("seed", self.seed, 0)
        truth("ignore_eos", self.ignore_eos)
        truth("logprobs", self.logprobs)
        for name in ("stop", "stop_token_ids"):
            if not isinstance(getattr(self, name) or (), Iterable):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be a list", name)
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if not all(isinstance(text, str) and text for text in stop):
            raise ConfigError(f"stop is {self.stop!r}; it must be one or more non-empty strings", "stop")
        for token in self.stop_token_ids or ():
            whole("stop_token_ids", token, 0)
            if vocab_size is not None and token >= vocab_size:
                raise ConfigError(
                    f"stop_token_ids has {token}; the vocabulary is 0 to {vocab_size - 1}", "stop_token_ids"
                )
        if options.acceptance == "match" and self.temperature > 0:
            raise ConfigError(
                f"acceptance 'match' is greedy, but temperature is {self.temperature:g}; "
                "use 'rejection' or 'replay', or temperature 0",
                "temperature",
            )
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("remasking_strategy", "confidence_threshold", "eb_threshold", "denoising_steps"):
            if given[name] is None:
                given[name] = getattr(options, name)
        given.update(
            stop=stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            seed=int(seed if self.seed is None else self.seed) % 2**63,
            temperature=float(self.temperature) if self.temperature >= COLDEST else 0.0,
            denoising_steps=options.block_length if given["denoising_steps"] is None else given["denoising_steps"],
        )
        resolved = SamplingParams(**given)
        check_schedule(replace(options, **{f: given[f] for f in _SCHEDULE}))
        return resolved


_SCHEDULE = ("remasking_strategy", "confidence_threshold", "eb_threshold", "denoising_steps")


Params = SamplingParams | Sequence["SamplingParams | None"] | None


def for_each(count: int, params: Params, options: DecodingOptions, *, recorded: bool = False) -> list[SamplingParams]:
    """The parameters of `count` prompts, checked: one for all, or one a prompt; None is those of the LLM.

    recorded: trajectories were given.
    """
    shared = not isinstance(params, list | tuple)
    many: list[Any] = [params] * max(count, 1) if shared else list(params)  # type: ignore[arg-type]
    if not shared and len(many) != count:
        raise ConfigError(f"{len(many)} params for {count} prompts; give one for all, or one a prompt")
    each = [SamplingParams() if one is None else one for one in many]
    for one in {id(one): one for one in each}.values():
        if not isinstance(one, SamplingParams):
            raise ConfigError(f"params is {type(one).__name__}; give SamplingParams, one for all or one a prompt")
        one.resolve(options, 0)
    wanted = options.method != "none" and options.drafter == "trajectory"
    if wanted and not recorded:
        raise ConfigError("drafter 'trajectory' needs recorded trajectories: generate(trajectories=...)")
    if recorded and not wanted:
        raise ConfigError("trajectories are given, but not used; set drafter='trajectory' on the LLM")
    return each


def check_schedule(options: DecodingOptions) -> None:
    """Refuses a schedule that cannot be run. Raises ConfigError."""
    choose("remasking_strategy", options.remasking_strategy, STRATEGIES)
    number("confidence_threshold", options.confidence_threshold, 0.0, 1.0)
    number("eb_threshold", options.eb_threshold, 0.0, math.inf)
    if options.denoising_steps is not None:
        whole("denoising_steps", options.denoising_steps, 1)
        try:
            quotas(options.block_length, options.denoising_steps)
        except ValueError as error:
            raise ConfigError(str(error), "denoising_steps") from None
