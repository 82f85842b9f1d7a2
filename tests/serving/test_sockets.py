"""The server on a real socket, with the unmodified OpenAI client and with clients that misbehave below HTTP."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI

from simsd import LLM
from simsd.serving.app import create_app
from simsd.serving.settings import ServerSettings
from tests.serving.support import ANSWER, CHAT, QUESTION, asked, listening

MESSAGES: Any = [{"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def app(pair: LLM) -> FastAPI:
    return create_app(pair, ServerSettings(api_key="s3cret", stall_timeout=2.0))


@pytest.fixture(scope="module")
def url(app: FastAPI) -> Iterator[str]:
    with listening(app) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="s3cret", max_retries=0) as found:
        yield found


def wait_until_idle(app: FastAPI) -> None:
    deadline = time.monotonic() + 60.0
    while app.state.engine.open_jobs or app.state.pool.leased:
        assert time.monotonic() < deadline, "a place was never given back"
        time.sleep(0.01)


def test_the_openai_client_chats(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(model="tiny", messages=MESSAGES, max_completion_tokens=100)
    assert found.choices[0].message.content == ANSWER
    assert found.choices[0].finish_reason == "stop"
    assert found.usage is not None
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    assert found._request_id


def test_the_openai_client_streams_and_reads_the_extension(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"simsd": {"method": "simsd", "stream_rounds": True}},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text.startswith("28, 36")
    assert chunks[-1].usage is not None
    told = [chunk.model_extra["simsd"] for chunk in chunks if chunk.model_extra and "simsd" in chunk.model_extra]
    assert told[-1]["method"] == "simsd"
    assert told[-1]["stats"]["rounds"] == sum("round" in part for part in told)


def test_the_openai_client_completes_with_log_probabilities(client: openai.OpenAI) -> None:
    found = client.completions.create(model="tiny", prompt="What is", max_tokens=4, logprobs=1, n=2, seed=3)
    assert [choice.index for choice in found.choices] == [0, 1]
    assert found.choices[0].logprobs is not None


def test_the_openai_client_lists_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_the_openai_client_raises_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature is -1"):
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)
    with pytest.raises(openai.NotFoundError, match="gpt-17"):
        client.chat.completions.create(model="gpt-17", messages=MESSAGES)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_the_openai_client_that_leaves_its_stream_frees_the_place(client: openai.OpenAI, app: FastAPI) -> None:
    before = app.state.metrics.registry.get_sample_value(
        "vllm:request_success_total", {"model_name": "tiny", "engine": "0", "finished_reason": "abort"}
    )
    endless: Any = {"simsd": {"ignore_eos": True}}
    with client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, max_tokens=10_000, extra_body=endless
    ) as stream:
        next(iter(stream))
    wait_until_idle(app)
    after = app.state.metrics.registry.get_sample_value(
        "vllm:request_success_total", {"model_name": "tiny", "engine": "0", "finished_reason": "abort"}
    )
    assert after == before + 1


def raw(url: str, data: bytes) -> socket.socket:
    address = httpx.URL(url)
    connection = socket.create_connection((address.host, address.port or 80), timeout=60.0)
    connection.sendall(data)
    return connection


def head(length: int) -> bytes:
    lines = [f"POST {CHAT} HTTP/1.1", "host: x", "content-type: application/json", "authorization: Bearer s3cret"]
    return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()


def test_clients_that_drip_break_off_or_lie_disturb_nobody(url: str, client: openai.OpenAI, app: FastAPI) -> None:
    body = json.dumps(asked(max_tokens=500, stream=True)).encode()
    dripping = raw(url, head(len(body)) + body[:20])
    broken = raw(url, head(len(body)) + body[:50])
    broken.close()
    garbage = raw(url, b"\x16\x03\x01 this is no HTTP \xff\r\n\r\n")
    resets = raw(url, head(len(body)) + body)
    resets.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    resets.close()  # a reset instead of a farewell
    found = client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert found.choices[0].message.content == ANSWER
    assert b"400" in garbage.recv(1000)
    told = dripping.recv(10_000)  # given up after stall_timeout
    assert b"408" in told.split(b"\r\n")[0]
    for connection in (dripping, garbage):
        connection.close()
    wait_until_idle(app)


def test_a_stopped_server_lets_its_streams_end(noise: LLM) -> None:
    app = create_app(noise, ServerSettings())
    body = asked(max_tokens=10_000, stream=True, simsd={"ignore_eos": True, "stream_rounds": True})
    with httpx.Client(timeout=60.0) as client:
        with listening(app) as url:
            request = client.build_request("POST", url + CHAT, json=body)
            response = client.send(request, stream=True)  # the server is told to stop while this one runs
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    last = json.loads([line for line in lines if "finish_reason" in line][-1][6:])
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["simsd"]["stats"]["tokens"] > 100
