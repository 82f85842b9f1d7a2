"""`simsd serve --ray` as a process, with two replicas of the embedded pair on a cluster of its own."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import psutil
import pytest

from simsd import LLM, SamplingParams
from tests.serving.support import CHAT, asked, events, text_of

pytest.importorskip("ray.serve")
pytestmark = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two replicas need two cores")

QUESTIONS = [f"Count from {first} in steps of 8, 5 numbers." for first in range(3, 7)]
EXACTLY = {"dtype": "float64", "num_speculative_tokens": 8}  # no tie depends on who shares the batch
CLIENTS = 4
PAUSE = 0.2  # seconds between two questions of a client: the new replica must come up on the same cores
NO_SPARE = {"RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0"}  # processes, on two cores
T = TypeVar("T")


@dataclass
class Cluster:
    """The process of `simsd serve --ray`, its log so far, and a client with its key."""

    process: psutil.Popen
    client: httpx.Client
    log: list[str] = field(default_factory=list)

    def everything(self) -> list[psutil.Process]:
        """All processes that it has started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def replicas(self) -> dict[int, psutil.Process]:
        return {one.pid: one for one in self.everything() if "ServeReplica:simsd" in title(one)}

    def engines(self) -> set[str]:
        """Which replicas answer; each scrape finds one of them."""
        scrapes = [self.client.get("/metrics").text for _ in range(12)]
        return {name for text in scrapes for name in re.findall(r'num_requests_running{engine="(\w+)"', text)}

    def aborted(self) -> bool:
        pattern = re.compile(r'request_success_total{.*finished_reason="abort".*} [1-9]')
        return any(pattern.search(self.client.get("/metrics").text) for _ in range(12))


def title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@contextmanager
def cluster(*flags: str) -> Iterator[Cluster]:
    command = [sys.executable, "-m", "simsd.cli.main", "serve", "--ray", "--port", "0", "--log-format", "json", *flags]
    env = os.environ | NO_SPARE
    with psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env) as process:
        found = Cluster(process, httpx.Client(timeout=60.0))
        try:
            for line in process.stderr:
                found.log.append(line)
                if '"ready"' in line:
                    break
            assert found.log and '"ready"' in found.log[-1], "".join(found.log)
            reader = threading.Thread(target=lambda: found.log.extend(process.stderr), daemon=True)
            reader.start()
            found.client.base_url = json.loads(found.log[-1])["url"]
            found.client.headers["authorization"] = "Bearer s3cret"
            yield found
        finally:
            found.client.close()
            if process.poll() is None:
                for one in (*found.everything(), process):
                    one.kill()


def until(what: Callable[[], T | None], seconds: float = 60.0) -> T:
    """The first true value, looked for a bounded time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.2)
    raise AssertionError("it did not come about")


@dataclass
class Load:
    """Clients that ask again and again. outcomes: (begin, end, whether the answer was right)."""

    cluster: Cluster
    answers: dict[str, str]
    outcomes: list[tuple[float, float, bool]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self, number: int) -> None:
        with httpx.Client(base_url=self.cluster.client.base_url, headers=self.cluster.client.headers) as client:
            for question in itertools.islice(itertools.cycle(QUESTIONS), number, None):
                begin, right = time.monotonic(), False
                try:
                    response = client.post(CHAT, json=asked(question), timeout=60.0)
                    right = response.status_code == 200 and content(response) == self.answers[question]
                except httpx.HTTPError:
                    right = False
                self.outcomes.append((begin, time.monotonic(), right))
                if self.over.wait(PAUSE):
                    return

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self.run, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.over.set()
            for thread in threads:
                thread.join(90.0)


def content(response: httpx.Response) -> str:
    return response.json()["choices"][0]["message"]["content"]


def test_two_replicas_lose_one_under_load_and_end_when_told() -> None:
    flags = ("--api-key", "s3cret", "--min-replicas", "2", "--device", "cpu", "--max-tokens", "64")
    flags = (*flags, "--dtype", "float64", "--num-speculative-tokens", "8")
    with ThreadPoolExecutor(1) as beside:
        expected = beside.submit(answers_of_one_llm)  # while the cluster starts, which is mostly waiting
        with cluster(*flags) as found:
            answers = expected.result()
            check_answers(found, answers)
            check_that_leaving_cancels(found)
            check_that_a_lost_replica_is_replaced(found, answers)
            check_that_streams_end(found)


def answers_of_one_llm() -> dict[str, str]:
    llm = LLM(device="cpu", **EXACTLY)
    asks = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return dict(zip(QUESTIONS, (out.text for out in llm.chat(asks, SamplingParams(max_tokens=64))), strict=True))


def check_answers(found: Cluster, answers: dict[str, str]) -> None:
    assert httpx.get(found.client.base_url.join("/v1/models")).status_code == 401
    assert found.client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    for question, answer in answers.items():
        assert content(found.client.post(CHAT, json=asked(question))) == answer
    given = found.client.get("/v1/models", headers={"x-request-id": "mine"}).headers.get_list("x-request-id")
    assert given == ["mine"]
    streamed = events(found.client.post(CHAT, json=asked(QUESTIONS[0], stream=True)).text)
    assert text_of(streamed) == answers[QUESTIONS[0]]
    assert len(found.replicas()) == len(found.engines()) == 2


def check_that_leaving_cancels(found: Cluster) -> None:
    """The first piece comes while the answer is not finished, which no later one is waited for."""
    endless = asked(stream=True, max_tokens=900, simsd={"ignore_eos": True, "method": "none"})
    with found.client.stream("POST", CHAT, json=endless) as response:
        assert next(response.iter_lines()).startswith("data: ")
    until(found.aborted)


def check_that_a_lost_replica_is_replaced(found: Cluster, answers: dict[str, str]) -> None:
    before, names, load = found.replicas(), found.engines(), Load(found, answers)
    with load.running():
        until(lambda: len(load.outcomes) > CLIENTS)
        lost = next(iter(before.values()))
        lost.kill()
        killed = time.monotonic()
        until(lambda: len(found.replicas().keys() - {lost.pid}) == 2 and len(found.engines() - names) == 1)
        until(lambda: len(found.engines()) == 2)
    failed = [(begin, end) for begin, end, right in load.outcomes if not right]
    assert all(begin <= killed for begin, _ in failed), "a request that came later failed"
    assert len(failed) <= CLIENTS
    assert sum(begin > killed for begin, _, _ in load.outcomes) > CLIENTS


def check_that_streams_end(found: Cluster) -> None:
    body = asked(stream=True, max_tokens=300, simsd={"ignore_eos": True, "method": "none"})
    started = found.everything()
    with found.client.stream("POST", CHAT, json=body) as response:
        lines = response.iter_lines()
        next(lines)
        found.process.send_signal(signal.SIGTERM)
        until(lambda: '"ending"' in found.log[-1])
        late = until(lambda: refused(found))
        rest = [line for line in lines if line]
    assert late["error"]["code"] == "shutting_down"
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2][6:])["simsd"]["stats"]["tokens"] == 300
    assert found.process.wait(60.0) == -signal.SIGTERM
    _, left = psutil.wait_procs(started, timeout=30.0)
    assert not left
    assert all(isinstance(json.loads(line)["event"], str) for line in found.log)


def refused(found: Cluster) -> dict[str, Any] | None:
    """The answer to a new request, once it is refused: never by the proxy, which would say that nothing is there."""
    response = found.client.post(CHAT, json=asked())
    assert response.status_code in (200, 503)
    return response.json() if response.status_code == 503 else None
