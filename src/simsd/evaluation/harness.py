"""lm-evaluation-harness runs its tasks on an `LLM`: the model named `simsd` there (extra `eval`)."""

from __future__ import annotations

import hashlib
import logging
import random
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string

from simsd.errors import ConfigError
from simsd.evaluation import asking
from simsd.evaluation.cost import Cost
from simsd.llm import LLM, Completion, SamplingParams
from simsd.progress import track

# A child of the harness's own logger, so that its command line shows these lines too.
log = logging.getLogger("lm_eval.simsd")

# Generation arguments that mean the same here as there.
_SAME = ("top_k", "top_p", "denoising_steps", "remasking_strategy", "confidence_threshold", "eb_threshold")

Pair = tuple[Any, list[int], list[int]]  # the harness's cache key, the context, the continuation


class SimsdLM(TemplateLM):
    """`lm_eval`'s view of an `LLM`: text until a stop string, and log-likelihoods under the sequential schedule."""

    def __init__(
        self,
        pretrained: str | LLM | None = None,
        *,
        draft: str | None = None,
        max_gen_toks: int = 256,
        max_length: int | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        trust_remote_code: bool = False,
        **options: Any,
    ) -> None:
        """What `--model_args` may hold.

        pretrained: a folder or a hub name, none for the embedded pair; in Python also an `LLM`.
        draft: the draft model. max_length: most tokens of prompt and answer. options: those of `LLM`, by their names.
        max_gen_toks: longest answer where the task does not say. batch_size: sequences side by side ("auto": 16).
        max_batch_size, trust_remote_code: taken, since the harness passes them on; code of checkpoints is never run.

        Raises: ConfigError, naming an argument that is unknown; ModelError, PairError.
        """
        super().__init__()
        del max_batch_size, trust_remote_code
        if isinstance(max_gen_toks, bool) or not isinstance(max_gen_toks, int) or max_gen_toks < 1:
            raise ConfigError(f"max_gen_toks is {max_gen_toks!r}; it must be a whole number of 1 or more")
        self.max_gen_toks = max_gen_toks
        given = {"draft_model": draft, "max_model_len": max_length, "max_num_seqs": _sequences(batch_size)}
        options |= {name: value for name, value in given.items() if value is not None}
        if isinstance(pretrained, LLM):
            self.llm = pretrained.with_options(**options)  # its own counts and caches
        else:
            self.llm = LLM(pretrained, **options)
        self.tokenizer = self.llm.tokenizer
        self.cost = Cost()  # of all text generated so far; scoring is not counted
        self.asked = 0  # texts
        self.finished: list[tuple[Any, Completion]] = []  # of those asked for, as they ended: request and text

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> SimsdLM:
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> SimsdLM:
        """`--model_args` go before the harness's own flags, one of which says cuda:0 unless told otherwise."""
        flags = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if str(flags.get("device")).startswith("cuda") and not torch.cuda.is_available():
            del flags["device"]
        return cls(**(flags | arg_dict))

    # ------------------------------------------------------------------ what the harness asks about the model
    @property
    def max_length(self) -> int:
        return self.llm.max_model_len

    @property
    def eot_token_id(self) -> int:
        """The checkpoint's end-of-text token, else its first stop id."""
        return self._special("eos_token")

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text without context: the beginning-of-text token, else the end-of-text token."""
        return self._special("bos_token", "eos_token")

    def _special(self, *names: str) -> int:
        special, vocabulary = self.llm.tokenizer.special_tokens, self.llm.tokenizer.backend
        ids = [vocabulary.token_to_id(special[name]) for name in names if name in special]
        ids = [token for token in ids if token is not None] + list(self.llm.config.stop_token_ids)
        if not ids:
            raise ConfigError(f"{self.llm.tokenizer.name} has no end-of-text token, which this task needs")
        return ids[0]

    @property
    def tokenizer_name(self) -> str:
        """Names tokenizer and chat template by their contents; the harness keys its caches with it."""
        template = hashlib.sha256((self.llm.tokenizer.chat_template or "").encode()).hexdigest()[:16]
        return f"{self.llm.tokenizer.name}-{self.llm.tokenizer.fingerprint}-{template}"

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self.llm.tokenizer.render_chat(chat_history, go_on=not add_generation_prompt)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        if add_special_tokens is None:  # a chat template writes the beginning-of-text token itself
            bos = self.llm.tokenizer.special_tokens.get("bos_token")
            add_special_tokens = not (bos and string.startswith(bos))
        return self.llm.tokenizer.encode(string, add_special_tokens=add_special_tokens)

    def get_model_info(self) -> dict[str, Any]:
        """Goes into the results, beside the accuracy: how the text was decoded, and what it cost."""
        return {"simsd": {"options": asdict(self.llm.options), **self.cost.to_dict()}}

    # ------------------------------------------------------------------ generation
    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """One text a request, cut before the first of its `until`. Prompts that are too long lose their beginning.

        A request that fails alone gets an empty text and a warning.
        """
        repeats = Counter[tuple[str, str]]()
        params: list[SamplingParams] = []
        for context, given in (request.args for request in requests):
            key = (context, repr(given))
            params.append(self._params(given, repeats[key]))
            repeats[key] += 1
        texts = [request.args[0] for request in requests]
        prompts = self._cut([self.tok_encode(text) for text in texts], [one.max_tokens for one in params])
        show = not disable_tqdm and sys.stderr.isatty()
        completions = self._answers(requests, prompts, params, show)
        for request, completion in zip(requests, completions, strict=True):
            if completion.error is not None:
                warnings.warn(f"a request was answered with an empty text: {completion.error}", stacklevel=2)
            self.cache_hook.add_partial("generate_until", request.args, completion.text)
        log.info("%s", self.cost)
        return [completion.text for completion in completions]

    def _answers(
        self, requests: Sequence[Any], prompts: list[list[int]], params: list[SamplingParams], show: bool
    ) -> list[Completion]:
        """One a request; what an interruption leaves finished is in `finished`, and counted."""
        if not self.asked:
            asking.warm_up(self.llm, prompts, params)
        self.asked += len(prompts)
        before, found = self.llm.totals, dict[int, Completion]()
        coming = asking.answers(self.llm, prompts, params)
        try:
            with track("answers", len(prompts), show) as advance, closing(coming):
                for place, completion in coming:
                    found[place] = completion
                    advance(1)
        finally:
            self.cost = self.cost.after(list(found.values()), self.llm.totals.since(before))
            self.finished += [(requests[place], found[place]) for place in sorted(found)]
        return [found[place] for place in range(len(prompts))]

    def _params(self, given: Mapping[str, Any], repeat: int) -> SamplingParams:
        """A request's parameters; repeat: how often the same request came before (it then samples another text)."""
        usual = {"temperature": 1.0} if given.get("do_sample") else {}
        wanted: dict[str, Any] = dict(normalize_gen_kwargs(usual | dict(given), self.max_gen_toks))
        until = [text for text in wanted.pop("until") if text]
        sample, seed = wanted.pop("do_sample"), wanted.pop("seed", None)
        temperature = wanted.pop("temperature", 0.0)
        if seed is None:  # the harness seeds Python's generator (--seed)
            seed = random.getrandbits(62) if sample else 0
        known = {name: wanted.pop(name) for name in _SAME if wanted.get(name) is not None}
        ids = [token for text in until if (token := self._hidden(text)) is not None]
        params = SamplingParams(
            wanted.pop("max_gen_toks"), temperature, stop=until, stop_token_ids=ids, seed=seed + repeat, **known
        )
        for name, value in wanted.items():
            warnings.warn(f"the generation argument {name}={value!r} is not supported and ignored", stacklevel=3)
        return params

    def _hidden(self, text: str) -> int | None:
        """The id of a stop string that is one special token: decoded text does not show those."""
        ids = self.llm.tokenizer.encode(text, add_special_tokens=False)
        return ids[0] if len(ids) == 1 and not self.llm.tokenizer.decode(ids) else None

    def _cut(self, prompts: list[list[int]], answers: list[int]) -> list[list[int]]:
        """Prompts that leave room for their answers; an answer takes at most half of the room."""
        most = self.max_length
        rooms = [max(most - answer, most // 2) for answer in answers]
        cut = [len(prompt) for prompt, room in zip(prompts, rooms, strict=True) if len(prompt) > room]
        if cut:
            warnings.warn(
                f"{len(cut)} of {len(prompts)} prompts were cut from the left, the longest of {max(cut)} tokens: "
                f"prompt and answer together may have {most}",
                stacklevel=3,
            )
        return [prompt[-room:] for prompt, room in zip(prompts, rooms, strict=True)]

    # ------------------------------------------------------------------ log-likelihoods
    def _loglikelihood_tokens(
        self, requests: Sequence[Pair], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """(log-likelihood, would greedy left-to-right decoding write it?) of each continuation."""
        most = self.max_length
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, (_key, context, continuation) in enumerate(requests):
            room = max(0, most - len(continuation))
            groups.setdefault(tuple(context[max(0, len(context) - room) :]), []).append(index)
        cut = sum(len(context) + len(continuation) > most for _key, context, continuation in requests)
        if cut:
            warnings.warn(f"{cut} of {len(requests)} texts were cut from the left to {most} tokens", stacklevel=3)
        found: dict[int, tuple[float, bool]] = {}
        show = not disable_tqdm and sys.stderr.isatty()
        with track("scoring", len(requests), show) as advance:
            for context in sorted(groups):  # neighbours share their beginning, and it is computed once
                members = groups[context]
                scores = self.llm.score(context, [requests[index][2][-most:] for index in members])
                for index, score in zip(members, scores, strict=True):
                    found[index] = (score.total, score.is_greedy)
                    if (key := requests[index][0]) is not None:
                        self.cache_hook.add_partial("loglikelihood", key, found[index])
                advance(len(members))
        return [found[index] for index in range(len(requests))]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of each whole text behind the prefix token, in windows of the model's length where need be."""
        windows: list[Pair] = []
        owner: list[int] = []
        for index, (text,) in enumerate(request.args for request in requests):
            # the prefix token takes one of the places
            pieces = get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self.max_length - 1, 1)
            for context, continuation in map(make_disjoint_window, pieces):
                windows.append((None, context, continuation))
                owner.append(index)
        totals = [0.0] * len(requests)
        for index, (total, _greedy) in zip(owner, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            totals[index] += total
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals


def _sequences(batch_size: int | str | None) -> Any:
    """The harness's batch size as a number of sequences; None where the choice is left to us."""
    text = str(batch_size)
    if batch_size is None or text.startswith("auto"):
        return None
    return int(text) if text.isdigit() else batch_size  # `LLM` says what is wrong with it


register_model("simsd")(SimsdLM)
