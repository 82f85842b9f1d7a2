"""What users import: `LLM`, its results, and the parameters of a request."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Any

import torch

from simsd.distributed.pair import open_on_ranks
from simsd.drafters.trajectory import Trajectory, check_trajectory
from simsd.engine.auto import Auto
from simsd.engine.completion import Completion, Message, Piece, Prompt
from simsd.engine.costs import Costs, CostTable
from simsd.engine.drafting import make_drafter
from simsd.engine.generation import Generation
from simsd.engine.graphs import graphs_for
from simsd.engine.options import DecodingOptions, Params, SamplingParams, choose, for_each, truth, whole
from simsd.engine.request import Sequence, Stats
from simsd.engine.runner import Runner
from simsd.engine.scheduler import Scheduler
from simsd.engine.scoring import Score, Scorer
from simsd.engine.settings import EngineSettings, decoding_options
from simsd.engine.trace import RoundTrace
from simsd.errors import ConfigError, PromptError, SimsdError, WorkerError
from simsd.models.config import ModelConfig
from simsd.models.loader import LoadedModel
from simsd.models.pair import QUANTIZE, Source, describe
from simsd.models.prompts import plain, prompt_ids, token_ids
from simsd.models.tokenizer import Tokenizer
from simsd.progress import track

__all__ = ["LLM", "Completion", "Piece", "RoundTrace", "SamplingParams", "Score", "Stats", "Trajectory"]


class LLM:
    """A block-diffusion language model with a way to decode it.

    `LLM()` is the embedded pair. Decoding options are those of `DecodingOptions`; each can also be set for one
    request in `SamplingParams` where that has a field of the same name. Several threads may use it.
    """

    def __init__(
        self,
        model: Source | None = None,
        *,
        draft_model: Source | None = None,
        method: str | None = None,
        dtype: str = "auto",
        device: str = "auto",
        draft_device: str | None = None,
        quantize: str = "none",
        tensor_parallel_size: int = 1,
        block_length: int | None = None,
        mask_token_id: int | None = None,
        max_num_seqs: int = 16,
        max_model_len: int | None = None,
        prefix_caching: bool = True,
        draft_ahead: bool | None = None,
        enforce_eager: bool = False,
        trace: bool = False,
        tokenizer: Any = None,
        shifted_logits: bool = False,
        **options: Any,
    ) -> None:
        """Loads the checkpoints and checks the options.

        model: a folder, a hub name, or a loaded transformers module; None is the embedded target (with the embedded
            draft model, if none is given).
        draft_model: likewise; it must share the target's tokenizer.
        method: "none", "simsd", "exact", "exact-draft-order"; None is "exact" with a draft model, else "none".
        dtype: "auto", "float32", "bfloat16", "float64"; device: "auto", "cpu", "cuda", "cuda:1".
        draft_device: the draft model's, if other than the target's.
        quantize: "none", "int8-draft", "int8"; whose linear layers get int8 weights, nobody's, the draft model's, both.
        tensor_parallel_size: ranks that both models are split among (docs/how-to/tensor-parallel.md).
        block_length, mask_token_id: override the checkpoint's.
        max_num_seqs: most sequences decoded side by side. max_model_len: most tokens of prompt and answer, no more
            than the model has positions for.
        prefix_caching: a prompt takes over what the cache still holds of its beginning (a common head, the turns of a
            conversation so far) instead of computing it again.
        draft_ahead: draft the next window while the target verifies; None is where the draft model has its own device.
        enforce_eager: record no CUDA graphs (docs/how-to/gpu.md).
        trace: keep what happened in every round.
        tokenizer, shifted_logits: of a loaded module; `models.huggingface.wrap` says what they are.

        Raises: ModelError, PairError, ConfigError, WorkerError.
        """
        whole("tensor_parallel_size", tensor_parallel_size, 1)
        self._engine = EngineSettings(max_num_seqs, max_model_len, prefix_caching, draft_ahead, enforce_eager, trace)
        self._engine.check_ranks(tensor_parallel_size)
        given = decoding_options(method, options, block_length=block_length, mask_token_id=mask_token_id)
        truth("shifted_logits", shifted_logits)
        self._quantize = choose("quantize", quantize, QUANTIZE)
        self._target, self._draft, self._workers = open_on_ranks(
            tensor_parallel_size,
            model,
            draft_model,
            dtype=dtype,
            device=device,
            draft_device=draft_device,
            quantize=quantize,
            max_model_len=max_model_len,
            block_length=block_length,
            mask_token_id=mask_token_id,
            tokenizer=tokenizer,
            shifted_logits=shifted_logits,
        )
        self._costs = Costs()
        method = method or ("exact" if self._draft is not None else "none")
        self._set_up(replace(given, method=method, block_length=self._target.config.block_length or 4))

    def with_options(self, **changes: Any) -> LLM:
        """Another `LLM` on the same weights, with its own caches and some options changed.

        Raises: ConfigError.
        """
        other = object.__new__(LLM)
        other._target, other._draft, other._workers = self._target, self._draft, self._workers
        other._costs, other._quantize = self._costs, self._quantize
        other._engine, changes = self._engine.changed(changes)
        other._engine.check_ranks(self.tensor_parallel_size)
        other._set_up(self._given.changed(changes))
        return other

    def close(self) -> None:
        """Ends the processes of tensor parallelism, if there are any, also for every `with_options` of this LLM, and
        the thread that drafts ahead, which the next request would start again.

        Without it they end when the last of these LLMs is no longer used, and with the program.
        """
        self._scheduler.close()
        if self._workers is not None:
            self._workers.close()

    def _set_up(self, given: DecodingOptions) -> None:
        self._given = given
        self.options = given.resolve(self._draft is not None)
        for loaded in (self._target, self._draft):
            if loaded is not None and (doubt := loaded.doubtful(self.options.block_length)):
                warnings.warn(doubt, stacklevel=3)
        size = self.options.block_length
        self.max_model_len = self._engine.longest(self.options, self.config.max_position_embeddings)
        self._scheduler = Scheduler(
            self.options,
            self._runner(self._target),
            make_drafter(self.options, lambda: self._runner(self._draft), self.device, self._engine.draft_ahead),
            decode=self.tokenizer.decode,
            max_num_seqs=self.max_num_seqs,
            trace=self._engine.trace,
            auto=Auto(self._table, size) if self.options.adaptive else None,
        )
        self._scorer = Scorer(self._runner(self._target), self.max_model_len)
        self._count = 0

    def _runner(self, loaded: LoadedModel[Any] | None) -> Runner:
        assert loaded is not None
        mask_id = self._target.config.mask_token_id
        assert mask_id is not None
        most = loaded.config.max_position_embeddings
        size, longest, caching = self.options.block_length, self.max_model_len, self._engine.prefix_caching
        eager = self._engine.enforce_eager or self._workers is not None  # ranks are called from the host
        graphs = None if eager else graphs_for(loaded.model.device)
        own = {"prefix_caching": caching, "graphs": graphs, "most_sequences": self.max_num_seqs}
        return Runner(loaded.model, mask_id, size, most, longest, **own)

    # ------------------------------------------------------------------ what is known
    @property
    def tokenizer(self) -> Tokenizer:
        return self._target.tokenizer

    @property
    def config(self) -> ModelConfig:
        return self._target.config

    @property
    def device(self) -> torch.device:
        """Where the target runs."""
        return self._target.model.device

    @property
    def max_num_seqs(self) -> int:
        """Most sequences decoded side by side."""
        return self._engine.max_num_seqs

    @property
    def totals(self) -> Stats:
        """What all requests came to so far, copied: a round counts once, whatever its batch; `seconds` is busy time."""
        with self._scheduler.lock:
            return Stats.sum([self._scheduler.totals])

    @property
    def tensor_parallel_size(self) -> int:
        """Ranks that the models are split among."""
        return 1 if self._workers is None else self._workers.size

    @property
    def alive(self) -> bool:
        """Whether it can decode: False once a rank of tensor parallelism is lost, or after `close`."""
        return self._workers is None or self._workers.alive

    def when_lost(self, act: Callable[[WorkerError], None]) -> None:
        """Calls `act`, from another thread, as soon as a rank of tensor parallelism is lost; not after `close`."""
        if self._workers is not None:
            self._workers.when_lost(act)

    @property
    def loaded(self) -> dict[str, str | None]:
        """Names of the target ("model") and of the draft model (None without one), fingerprints of their files, the
        target's dtype, `quantize`, "draft_device" where it is not the target's, and "draft_ahead" where it was set."""
        ahead = self._engine.draft_ahead
        chosen = {} if ahead is None else {"draft_ahead": "on" if ahead else "off"}
        return {**describe(self._target, self._draft), "quantize": self._quantize, **chosen}

    @property
    def embedded(self) -> bool:
        """True for the pair that comes with the package."""
        return self._target.name == "tiny"

    # ------------------------------------------------------------------ decoding
    def generate(
        self,
        prompts: Prompt | Many[Prompt],
        params: Params = None,
        *,
        trajectories: Trajectory | Many[Trajectory | None] | None = None,
        progress: bool = False,
    ) -> list[Completion]:
        """Completes raw text (no chat template). Results do not depend on what else is in the batch.

        prompts: text, ids, or a list of either. In a list a bad prompt fails alone: its completion carries `error`.
        params: one for all prompts, or a list with one a prompt.
        trajectories: one a prompt (None: no draft for that one), for drafter "trajectory".
        progress: show a progress bar.

        Raises: PromptError, NumericalError or RoomError for a single prompt; ConfigError.
        """
        prompts = plain(prompts, "prompt")
        single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
        many: list[Any] = [prompts] if single else list(prompts)
        if isinstance(trajectories, Trajectory):
            trajectories = [trajectories]
        return self._complete(many, params, single, trajectories, progress)

    def chat(
        self,
        messages: Many[Message] | Many[Many[Message]],
        params: Params = None,
        *,
        progress: bool = False,
    ) -> list[Completion]:
        """Answers a conversation, or a list of them, through the checkpoint's chat template.

        Raises: as `generate`; ModelError where the checkpoint has no chat template.
        """
        messages = plain(messages, "conversation")
        if isinstance(messages, str):
            raise PromptError('a conversation is text; give messages such as [{"role": "user", "content": ...}]')
        single = len(messages) == 0 or isinstance(messages[0], Mapping)
        many: list[Any] = [messages] if single else list(messages)
        prompts: list[Any] = []
        for conversation in many:
            try:
                prompts.append(self.tokenizer.apply_chat_template(conversation))
            except PromptError as error:
                if single:
                    raise
                prompts.append(error)
        return self._complete(prompts, params, single, None, progress)

    def stream(self, prompt: Prompt | Many[Message], params: SamplingParams | None = None) -> Iterator[Piece]:
        """The answer piece by piece, as blocks are finished; a list of messages is a conversation, as in `chat`.

        Leaving the loop early cancels the request. Raises: as `generate`.
        """
        return self.open(prompt, params).pieces()

    def open(self, prompt: Prompt | Many[Message], params: SamplingParams | None = None) -> Generation:
        """A request that is checked but not started, for programs with a loop of their own, such as a server.

        `Generation.start` queues it, `step` decodes, `Generation.read` gives what is new. Raises: as `generate`.
        """
        prompt = plain(prompt, "prompt")
        if not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping):
            ids: Prompt = self.tokenizer.apply_chat_template(prompt)  # type: ignore[arg-type]
        else:
            ids = prompt  # type: ignore[assignment]
        return self._generation(ids, for_each(1, params, self.options)[0], None)

    def prepare(self) -> None:
        """Measures what an automatic window needs, unless it is known; else the first request waits for it, seconds.

        Rounds wait meanwhile: beside one, forwards would look slower than they are, for good.
        """
        with self._scheduler.lock:
            self._table()

    def _table(self) -> CostTable:
        """What forwards of the target cost. Hold the scheduler's lock, which comes before that of the costs."""
        return self._costs.table(self._scheduler.target)

    def step(self) -> None:
        """One round for all requests that are started and not ended, in whatever thread it is called."""
        self._scheduler.step()

    def score(self, context: Prompt, continuations: Many[Prompt]) -> list[Score]:
        """How likely each continuation of `context` is, decoded from left to right (docs/how-to/evaluate.md).

        Text or ids, empty ones too; each text is tokenised by itself. The context is computed once for all.

        Raises: PromptError, NumericalError.
        """
        first = token_ids(context, "context", self.tokenizer, self.config)
        rest = [token_ids(one, "continuation", self.tokenizer, self.config, special=False) for one in continuations]
        return self._scorer.score(first, rest)

    def _complete(
        self,
        prompts: list[Any],
        params: Params,
        single: bool,
        trajectories: Many[Trajectory | None] | None,
        progress: bool,
    ) -> list[Completion]:
        each = for_each(len(prompts), params, self.options, recorded=trajectories is not None)
        if trajectories is not None and len(trajectories) != len(prompts):
            raise ConfigError(f"{len(trajectories)} trajectories for {len(prompts)} prompts; give one a prompt")
        entries: list[Generation | SimsdError] = []
        for index, prompt in enumerate(prompts):
            try:
                entries.append(self._generation(prompt, each[index], trajectories[index] if trajectories else None))
            except SimsdError as error:
                if single:
                    raise
                entries.append(error)
        generations = [entry for entry in entries if isinstance(entry, Generation)]
        self._run(generations, progress)
        if single and (error := generations[0].sequence.error) is not None:
            raise error
        return [
            entry.completion()
            if isinstance(entry, Generation)
            else Completion(prompt if not isinstance(prompt, SimsdError) else "", "", [], "error", error=entry)
            for prompt, entry in zip(prompts, entries, strict=True)
        ]

    def _run(self, generations: list[Generation], progress: bool) -> None:
        for generation in generations:
            generation.start()
        try:
            with track("decoding", len(generations), progress) as advance:
                left = len(generations)
                while left:
                    self.step()  # or another thread's round ends them
                    with self._scheduler.lock:  # a round that another thread is running has ended nothing yet
                        still = sum(not generation.ended for generation in generations)
                    advance(left - still)
                    left = still
        finally:
            for generation in generations:
                generation.cancel()

    def _generation(self, prompt: Any, params: SamplingParams, trajectory: Trajectory | None) -> Generation:
        if isinstance(prompt, SimsdError):
            raise prompt
        ids = prompt_ids(prompt, self.tokenizer, self.config, self.max_model_len)
        self._count += 1
        resolved = params.resolve(self.options, secrets.randbits(62), self.config.vocab_size)
        resolved = replace(resolved, max_tokens=min(resolved.max_tokens, self.max_model_len - len(ids)))
        own = () if params.ignore_eos else self.config.stop_token_ids
        mask_id = self.config.mask_token_id
        assert mask_id is not None
        stops = frozenset(own) | frozenset(resolved.stop_token_ids)
        sequence = Sequence(self._count, ids, resolved, stops, self.options.block_length, mask_id)
        if trajectory is not None:
            check_trajectory(trajectory, self.config.vocab_size)
            sequence.memory["trajectory"] = trajectory
        return Generation(prompt, sequence, self._scheduler, self.tokenizer, trace=self._engine.trace)
