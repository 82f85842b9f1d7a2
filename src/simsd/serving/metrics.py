"""What Prometheus scrapes. Names, labels and meanings are vLLM's, so that its dashboards work."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LATENCY = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)
PER_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)

# OpenAI's finish reasons and vLLM's two further ones; listed from the start, so that rates are right at once.
REASONS = ("stop", "length", "abort", "error")


class Metrics:
    """The metrics of one server, in a registry of their own. engine: its name among several servers of the model."""

    def __init__(self, model_name: str, engine: str = "0") -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": engine}
        self._running = self._gauge("vllm:num_requests_running", "Requests that are being decoded.")
        self._waiting = self._gauge("vllm:num_requests_waiting", "Requests that wait for a place.")
        self._success = Counter(
            "vllm:request_success",
            "Requests that left, by the reason.",
            (*self._labels, "finished_reason"),
            registry=self.registry,
        )
        for reason in REASONS:
            self._success.labels(**self._labels, finished_reason=reason)
        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Tokens of prompts.")
        self._generation_tokens = self._counter("vllm:generation_tokens", "Tokens of answers.")
        self._first = self._histogram("vllm:time_to_first_token_seconds", "From arrival to the first text.", LATENCY)
        self._inter = self._histogram(
            "vllm:inter_token_latency_seconds", "Between two deliveries of one request, a token each.", PER_TOKEN
        )
        self._mean_inter = self._histogram(
            "vllm:request_time_per_output_token_seconds",
            "A request's mean time for each further token.",
            PER_TOKEN,
        )
        self._latency = self._histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", LATENCY)
        self._queue = self._histogram("vllm:request_queue_time_seconds", "From arrival to a place.", LATENCY)
        self._decode = self._histogram("vllm:request_decode_time_seconds", "From the first text to the end.", LATENCY)
        self._drafts = self._counter("vllm:spec_decode_num_drafts", "Rounds in which tokens were drafted.")
        self._draft_tokens = self._counter("vllm:spec_decode_num_draft_tokens", "Drafted tokens.")
        self._accepted = self._counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were kept.")
        self._per_position = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Rounds that kept more drafted tokens than this position.",
            (*self._labels, "position"),
            registry=self.registry,
        )
        self._refused = Counter(
            "simsd:http_errors", "Responses with an error status.", (*self._labels, "status"), registry=self.registry
        )

    def watch(self, running: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Where the gauges read their values when they are scraped."""
        self._running.set_function(running)
        self._waiting.set_function(waiting)

    def started(self, prompt_tokens: int, queued: float) -> None:
        self._prompt_tokens.inc(prompt_tokens)
        self._queue.observe(queued)

    def first_tokens(self, seconds: float, count: int) -> None:
        self._first.observe(seconds)
        self._generation_tokens.inc(count)

    def more_tokens(self, seconds: float, count: int) -> None:
        """count tokens at once, `seconds` after the last ones: each is observed with its share."""
        for _ in range(count):
            self._inter.observe(seconds / count)
        self._generation_tokens.inc(count)

    def drafted(self, drafted: int, accepted: int) -> None:
        """One round of one request."""
        if drafted == 0:
            return
        self._drafts.inc()
        self._draft_tokens.inc(drafted)
        self._accepted.inc(accepted)
        for position in range(accepted):
            self._per_position.labels(**self._labels, position=str(position)).inc()

    def ended(self, reason: str, seconds: float, decode: float | None, tokens: int) -> None:
        """decode: seconds since the first text, if there was any."""
        self._success.labels(**self._labels, finished_reason=reason).inc()
        self._latency.observe(seconds)
        if decode is not None:
            self._decode.observe(decode)
            if tokens > 1:
                self._mean_inter.observe(decode / (tokens - 1))

    def error(self, status: int) -> None:
        self._refused.labels(**self._labels, status=str(status)).inc()

    def render(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, tuple(self._labels), registry=self.registry).labels(**self._labels)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, tuple(self._labels), registry=self.registry).labels(**self._labels)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(name, text, tuple(self._labels), registry=self.registry, buckets=buckets)
        return family.labels(**self._labels)
