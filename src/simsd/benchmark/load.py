"""A server under load: time to the first token, time for each further one, and throughput, as its clients see them.

A closed loop: `concurrency` clients ask one question after another, each as soon as it has the last answer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simsd.engine.options import whole
from simsd.errors import ConfigError

if TYPE_CHECKING:
    import httpx
    from rich.table import Table

Question = str | Sequence[Mapping[str, Any]]

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Ask:
    """What is asked of the server, besides the questions.

    extension: the request's key `simsd`. timeout: seconds for one answer.
    """

    model: str | None = None
    api_key: str | None = None
    max_tokens: int = 128
    temperature: float = 0.0
    extension: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 600.0

    def body(self, model: str, question: Question) -> dict[str, Any]:
        messages = [{"role": "user", "content": question}] if isinstance(question, str) else list(question)
        asked = {"model": model, "messages": messages, "max_tokens": self.max_tokens, "temperature": self.temperature}
        more = {"simsd": dict(self.extension)} if self.extension else {}
        return asked | more | {"stream": True, "stream_options": {"include_usage": True}}


@dataclass(frozen=True)
class Timing:
    """One answer, in seconds from the request on. failure: what went wrong, where it did."""

    first: float = 0.0
    total: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    stats: Mapping[str, Any] = field(default_factory=dict)
    failure: str | None = None

    @property
    def per_token(self) -> float | None:
        """Seconds for each token after the first; None where there was one at most."""
        return (self.total - self.first) / (self.tokens - 1) if self.tokens > 1 else None


@dataclass(frozen=True)
class LoadResult:
    """All answers of a run, and the `seconds` they took together."""

    url: str
    model: str
    concurrency: int
    seconds: float
    timings: Sequence[Timing]

    @property
    def answered(self) -> list[Timing]:
        return [timing for timing in self.timings if timing.failure is None]

    @property
    def failures(self) -> dict[str, int]:
        """What went wrong, and how often."""
        return dict(Counter(timing.failure for timing in self.timings if timing.failure is not None))

    @property
    def tokens(self) -> int:
        return sum(timing.tokens for timing in self.timings)

    def to_dict(self) -> dict[str, Any]:
        """Seconds and rates; a distribution is None where nothing was measured."""
        done = self.answered
        return {
            "url": self.url,
            "model": self.model,
            "concurrency": self.concurrency,
            "requests": len(self.timings),
            "failures": self.failures,
            "seconds": self.seconds,
            "prompt_tokens": sum(timing.prompt_tokens for timing in done),
            "tokens": self.tokens,
            "requests_per_second": len(done) / self.seconds,
            "tokens_per_second": self.tokens / self.seconds,
            "time_to_first_token": spread([timing.first for timing in done]),
            "time_per_token": spread([each for timing in done if (each := timing.per_token) is not None]),
            "latency": spread([timing.total for timing in done]),
            "tokens_per_forward": self._ratio("tokens", "target_forwards"),
            "acceptance_rate": self._ratio("accepted_tokens", "drafted_tokens"),
        }

    def table(self) -> Table:
        """The same for people."""
        from rich.table import Table

        found = self.to_dict()
        title = f"{found['requests']} requests, {self.concurrency} at a time, {found['tokens_per_second']:.1f} tokens/s"
        table = Table(title=title, title_justify="left", title_style="bold")
        table.add_column("milliseconds")
        for name in ("mean", *(f"p{percent}" for percent in PERCENTILES)):
            table.add_column(name, justify="right")
        for label in ("time_to_first_token", "time_per_token", "latency"):
            values = found[label]
            cells = ["-"] * 4 if values is None else [f"{1000 * value:.1f}" for value in values.values()]
            table.add_row(label.replace("_", " "), *cells)
        return table

    def _ratio(self, above: str, below: str) -> float | None:
        """From the statistics that a simsd server sends along; None with other servers."""
        count = sum(timing.stats.get(below, 0) for timing in self.timings)
        return sum(timing.stats.get(above, 0) for timing in self.timings) / count if count else None


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Mean and percentiles; None of nothing."""
    import numpy as np

    if not values:
        return None
    found = np.percentile(values, PERCENTILES)
    return {"mean": float(np.mean(values))} | {f"p{p}": float(v) for p, v in zip(PERCENTILES, found, strict=True)}


def measure(
    url: str,
    questions: Sequence[Question],
    *,
    concurrency: int = 8,
    requests: int | None = None,
    ask: Ask | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> LoadResult:
    """Asks a server the questions in turn, `requests` in all (each once by default), after one that is not counted.

    url: of the server, with or without /v1; any OpenAI-compatible one will do.
    questions: texts, or conversations. advance: called with the number of answers that are done.

    Raises: ConfigError, where the server cannot be reached or knows no model.
    """
    whole("concurrency", concurrency, 1)
    if requests is not None:
        whole("requests", requests, 1)
    if not questions:
        raise ConfigError("there is no question to ask; give at least one")
    return asyncio.run(_measure(url, questions, concurrency, requests or len(questions), ask or Ask(), advance))


async def _measure(
    url: str, questions: Sequence[Question], concurrency: int, requests: int, ask: Ask, advance: Callable[[int], None]
) -> LoadResult:
    async with _client(url, concurrency, ask) as client:
        model = ask.model or await _first_model(client, url)
        first = await _answer(client, ask.body(model, questions[0]))
        if first.failure is not None:
            raise ConfigError(f"the server at {url} does not answer: {first.failure}")
        numbers = iter(range(requests))
        timings: list[Timing] = []

        async def keep_asking() -> None:
            for number in numbers:
                timings.append(await _answer(client, ask.body(model, questions[number % len(questions)])))
                advance(1)

        begin = time.perf_counter()
        await asyncio.gather(*(keep_asking() for _ in range(min(concurrency, requests))))
        return LoadResult(url, model, concurrency, time.perf_counter() - begin, timings)


def _client(url: str, concurrency: int, ask: Ask) -> httpx.AsyncClient:
    try:
        import httpx
    except ImportError as error:
        raise ConfigError("measuring a server needs httpx; install the extra: pip install 'simsd[serve]'") from error
    headers = {} if ask.api_key is None else {"authorization": f"Bearer {ask.api_key}"}
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    base = url.rstrip("/").removesuffix("/v1")
    return httpx.AsyncClient(base_url=base, headers=headers, limits=limits, timeout=ask.timeout)


async def _first_model(client: httpx.AsyncClient, url: str) -> str:
    import httpx

    try:
        response = await client.get("/v1/models")
        response.raise_for_status()
        return response.json()["data"][0]["id"]
    except httpx.HTTPStatusError as error:
        raise ConfigError(
            f"{url} answers with status {error.response.status_code}; check the URL and the key"
        ) from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
        reason = str(error) or type(error).__name__
        raise ConfigError(f"no model server answers at {url} ({reason}); check the URL, or name the model") from error


async def _answer(client: httpx.AsyncClient, body: Mapping[str, Any]) -> Timing:
    """Asks once and times the chunks as they arrive."""
    import httpx

    begin = time.perf_counter()
    first, usage, stats, failure = None, {}, {}, None
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                return Timing(failure=f"status {response.status_code}")
            async for line in response.aiter_lines():
                for chunk in _chunks(line):
                    if first is None and _has_text(chunk):
                        first = time.perf_counter() - begin
                    usage = chunk.get("usage") or usage
                    stats = (chunk.get("simsd") or {}).get("stats", stats)
                    failure = (chunk.get("error") or {}).get("code", failure) if "error" in chunk else failure
    except httpx.HTTPError as error:
        return Timing(failure=type(error).__name__)
    total = time.perf_counter() - begin
    if failure is not None:
        return Timing(failure=str(failure))
    tokens, prompt_tokens = usage.get("completion_tokens", 0), usage.get("prompt_tokens", 0)
    return Timing(total if first is None else first, total, tokens, prompt_tokens, stats)


def _chunks(line: str) -> Iterator[dict[str, Any]]:
    """The chunk on a line of an event stream; most lines are empty."""
    if line.startswith("data: {"):
        yield json.loads(line[6:])


def _has_text(chunk: Mapping[str, Any]) -> bool:
    return any((choice.get("delta") or {}).get("content") for choice in chunk.get("choices", []))
