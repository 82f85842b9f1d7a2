"""`simsd serve` as a process: it says where it listens, answers, and lets requests finish when it is told to stop."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from tests.cli.conftest import Run


@contextmanager
def serving(
    *flags: str, preexec: Callable[[], None] | None = None, warnings: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "simsd.cli.main", "serve", "--port", "0", "--log-format", "json", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=preexec) as process:
        try:
            assert process.stderr is not None
            for before in warnings:
                assert json.loads(process.stderr.readline())["event"] == before
            ready = json.loads(process.stderr.readline())
            assert ready["event"] == "ready"
            yield process, ready["url"]
        finally:
            process.kill()


def test_it_serves_until_it_is_told_to_stop_and_finishes_its_streams() -> None:
    body = {
        "messages": [{"role": "user", "content": "Count from 28 in steps of 8, 12 numbers."}],
        "stream": True,
        "simsd": {"ignore_eos": True},
    }
    flags = ("--api-key", "s3cret", "--served-model-name", "pair", "--max-tokens", "150", "--method", "none")
    with serving(*flags) as (process, url), httpx.Client(base_url=url, timeout=60.0) as client:
        assert client.get("/v1/models").status_code == 401
        client.headers["authorization"] = "Bearer s3cret"
        assert client.get("/v1/models").json()["data"][0]["id"] == "pair"
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        stats = json.loads(rest[-2][6:])["simsd"]
        assert (stats["method"], stats["stats"]["tokens"]) == ("none", 150)
        assert process.stderr is not None
        log = [json.loads(line) for line in process.stderr.read().splitlines()]
        assert process.wait(60.0) == -signal.SIGTERM
        assert log[-1]["event"] == "stopped"
        assert {line["level"] for line in log} == {"INFO"}


def test_a_port_that_is_taken_is_one_sentence(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = run("serve", "--port", str(port))
    assert found.exit_code == 2
    assert re.fullmatch(rf"simsd: cannot listen on 127\.0\.0\.1, port {port} \(.*\); choose another\.\n", found.stderr)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--log-format", "xml"), "--log-format is 'xml'"),
        (("--request-timeout", "0"), "request_timeout is 0"),
        (("--max-waiting", "-1"), "max_waiting is -1"),
        (("--allow-origin", "foo"), "the allowed origin 'foo'"),
        (("--api-key", " "), "the API key is empty"),
        (("--host", "no.such.host.invalid"), "cannot listen on no.such.host.invalid"),
        (("--method", "magic"), "--method is 'magic'"),
    ],
)
def test_mistakes_are_one_sentence(run: Run, flags: tuple[str, ...], says: str) -> None:
    found = run("serve", *flags)
    assert found.exit_code == 2
    assert found.stderr.startswith("simsd: ")
    assert says in found.stderr
    assert found.stderr.count("\n") == 1


def test_without_the_extra_it_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    found = run("serve")
    assert found.exit_code == 2
    assert "simsd[serve]" in found.stderr


LONG = {"messages": [{"role": "user", "content": "Count."}], "n": 40, "simsd": {"ignore_eos": True}}


def wait_until_closed(url: str) -> None:
    """Until nobody new is let in."""
    for _ in range(1000):
        try:
            httpx.get(f"{url}/health", timeout=10.0)
        except httpx.TransportError:
            return
        time.sleep(0.01)
    raise AssertionError("the port is still open")


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once_with_a_word_to_everyone(first: signal.Signals) -> None:
    with serving("--method", "none", "--max-num-seqs", "1", "--shutdown-timeout", "1000") as (process, url):
        with ThreadPoolExecutor() as threads, httpx.Client(base_url=url, timeout=60.0) as client:
            with client.stream("POST", "/v1/chat/completions", json=LONG | {"stream": True}) as response:
                whole = threads.submit(httpx.post, f"{url}/v1/chat/completions", json=LONG, timeout=60.0)
                while int(re.findall(r"num_requests_waiting{.*} (\d+)", httpx.get(f"{url}/metrics").text)[0]) < 60:
                    time.sleep(0.01)
                process.send_signal(first)
                wait_until_closed(url)  # two equal signals at once would be one
                process.send_signal(signal.SIGINT)
                rest = [line for line in response.iter_lines() if line]
            assert whole.result().status_code == 503
        assert json.loads(rest[-2][6:])["error"]["code"] == "shutting_down"
        assert rest[-1] == "data: [DONE]"
        assert process.stderr is not None
        log = [json.loads(line) for line in process.stderr.read().splitlines()]  # and no line that is something else
        assert process.wait(60.0) in (130, -signal.SIGTERM)  # which of two came first, the system decides
        assert [line["event"] for line in log if line["level"] != "INFO"] == ["ending"]
        assert not any("traceback" in line for line in log)


def test_a_flood_of_connections_is_outlived_with_few_files_and_few_words() -> None:
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))

    resource = pytest.importorskip("resource")
    with serving(preexec=few_files) as (process, url):
        address = httpx.URL(url)
        flood = []
        for _ in range(200):
            flood.append(socket.create_connection((address.host, address.port or 80)))
            flood[-1].sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
        for _ in range(5):
            assert httpx.get(f"{url}/health", timeout=10.0).status_code == 200
        for one in flood:
            one.close()
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        log = process.stderr.read()
        assert "Traceback" not in log
        assert len(log) < 2000


def test_a_length_that_the_model_does_not_allow_is_told_at_the_start() -> None:
    with serving("--max-model-len", "5000", warnings=["max_model_len"]) as (_, url):
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["max_model_len"] < 5000
