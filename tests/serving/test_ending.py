"""How a server ends: in time, whatever runs, with a word to every client and without one traceback."""

from __future__ import annotations

import json
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from simsd import LLM
from simsd.serving import engine
from simsd.serving.app import create_app
from simsd.serving.server import Server
from simsd.serving.settings import ServerSettings
from tests.serving.support import CHAT, FREELY, asked, listening
from tests.serving.test_sockets import head, raw

ENDLESS: dict[str, Any] = {"max_tokens": 10_000, "simsd": {"ignore_eos": True}}
STREAM: dict[str, Any] = {"max_tokens": 10_000, "simsd": {"ignore_eos": True, "stream_rounds": True}, "stream": True}


@pytest.fixture
def stuck(allow: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """A round that does not end by itself: time is up long before."""
    monkeypatch.setattr(engine, "LAST_ROUND", 0.05)
    yield allow
    allow(FREELY)


def wait_for(app: FastAPI, jobs: int) -> None:
    while app.state.engine.open_jobs < jobs:
        threading.Event().wait(0.01)


@pytest.mark.parametrize("seconds", [0.0, 0.4])
def test_when_time_is_up_every_client_is_told(
    noise: LLM, stuck: Callable[[int], None], seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    app = create_app(noise, ServerSettings(shutdown_timeout=seconds))
    with ThreadPoolExecutor() as threads, httpx.Client(timeout=60.0) as client:
        with ExitStack() as stack:
            url = stack.enter_context(listening(app))
            stuck(1)  # the stream begins, and then nothing moves
            request = client.build_request("POST", url + CHAT, json=asked(**STREAM))
            stream = client.send(request, stream=True)
            whole = [threads.submit(client.post, url + CHAT, json=asked(**ENDLESS)) for _ in range(6)]
            wait_for(app, 7)  # for four places
            half = raw(url, head(1000) + b"{")
        for future in whole:
            answer = future.result()
            assert answer.status_code == 503
            assert answer.headers["x-request-id"]
            assert answer.json()["error"]["code"] == "shutting_down"
        lines = [line for line in stream.iter_lines() if line]
        assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert lines[-1] == "data: [DONE]"
        assert b" 503 " in half.recv(10_000).split(b"\r\n")[0]
        half.close()
    assert [one.getMessage() for one in caplog.records if one.exc_info] == []
    assert sum(one.getMessage() == "ending" for one in caplog.records) == 1
    assert not any(one.name.startswith("uvicorn") and one.levelno >= logging.WARNING for one in caplog.records)


def test_a_client_that_takes_nothing_in_cannot_hold_the_end_up(noise: LLM, caplog: pytest.LogCaptureFixture) -> None:
    """Its answer is longer than what the sockets hold, so it is never sent."""
    app = create_app(noise, ServerSettings(shutdown_timeout=0.0, stall_timeout=600.0))
    many = asked(**STREAM | {"n": 12, "simsd": STREAM["simsd"] | {"stream_layouts": True}})
    body = json.dumps(many).encode()
    with listening(app) as url:
        deaf = raw(url, head(len(body)) + body)
        wait_for(app, 1)
        while app.state.engine.open_jobs:
            threading.Event().wait(0.01)
    deaf.close()
    assert [one.getMessage() for one in caplog.records if one.exc_info] == []


def test_what_ends_in_time_ends_well(noise: LLM, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    app = create_app(noise, ServerSettings(shutdown_timeout=600.0))
    with ThreadPoolExecutor() as threads:
        with listening(app) as url:
            whole = [threads.submit(httpx.post, url + CHAT, json=asked(**ENDLESS), timeout=60.0) for _ in range(6)]
            while app.state.engine.open_jobs + sum(future.done() for future in whole) < len(whole):
                threading.Event().wait(0.01)  # who has not come yet when the port closes is refused
        assert {future.result().status_code for future in whole} <= {200}
    assert not any(one.getMessage() == "ending" for one in caplog.records)


def test_a_signal_that_the_event_loop_swallowed_has_its_effect_all_the_same(
    pair: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: uvicorn.Server, sockets: Any = None) -> None:
        self.handle_exit(signal.SIGINT, None)
        self.handle_exit(signal.SIGINT, None)

    monkeypatch.setattr(uvicorn.Server, "run", run)
    with pytest.raises(KeyboardInterrupt):
        Server(create_app(pair, ServerSettings())).run()
