"""Answers other than chats: unknown paths and methods, HEAD, encodings, preflights, and words too long to repeat."""

from __future__ import annotations

import asyncio
import logging

import pytest

from simsd import LLM
from simsd.errors import ConfigError
from simsd.serving.settings import ServerSettings
from tests.serving.support import CHAT, TEXT, asked, running
from tests.serving.test_faults import JSON, one_sentence

UNKNOWN = ("/v1/embeddings", "/v1/chat", "/v1/chat/completions/", "/health/", "/nothing", "/main.js/x", "/v1/responses")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
READ = ("/", "/main.js", "/health", "/metrics", "/v1/models", "/v1/models/tiny")


def test_paths_and_methods(noise: LLM) -> None:
    async def check() -> None:
        async with running(noise) as server:
            for path in UNKNOWN:
                for method in METHODS:
                    found = await server.client.request(method, path)
                    assert found.status_code == 404, (method, path)
            for path in (*READ, CHAT, TEXT):
                allowed = {"POST"} if path in (CHAT, TEXT) else {"GET", "HEAD"}
                for method in set(METHODS) - allowed:
                    found = await server.client.request(method, path)
                    assert found.status_code == 405, (method, path)
                    assert set(found.headers["allow"].split(", ")) == allowed

    asyncio.run(check())


@pytest.mark.parametrize("path", READ)
def test_head_is_as_get(noise: LLM, path: str) -> None:
    async def check() -> None:
        async with running(noise) as server:
            got, head = await server.client.get(path), await server.client.head(path)
            assert (got.status_code, head.status_code) == (200, 200)
            assert got.headers["content-type"] == head.headers["content-type"]

    asyncio.run(check())


def test_words_too_long_to_repeat_are_cut(noise: LLM, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    long = "x" * 100_000

    async def check() -> None:
        async with running(noise) as server:
            requests = [
                (server.post(model=long), 404),
                (server.client.get(f"/{long[:60_000]}"), 404),
                (server.client.get(f"/v1/models/{long[:60_000]}"), 404),
                (server.post(CHAT, **{long: 1}), 400),
                (server.post(simsd={long: 1}), 400),
                (server.post(simsd={"method": long}), 400),
                (server.post(simsd={"num_speculative_tokens": long}), 400),
                (server.client.post(CHAT, content=b"{}", headers={"content-type": long}), 415),
                (server.client.post(CHAT, content=b"{}", headers={"content-encoding": long}), 415),
            ]
            for request, status in requests:
                found = await request
                one_sentence(found, status)
                assert len(found.content) < 800

    asyncio.run(check())
    lines = [str(one.__dict__.get("fields", "")) for one in caplog.records if one.name == "simsd.serving"]
    assert lines and max(map(len, lines)) < 600


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip"])
def test_a_body_in_another_encoding_is_named(noise: LLM, encoding: str) -> None:
    async def check() -> None:
        async with running(noise) as server:
            headers = JSON | {"content-encoding": encoding}
            error = one_sentence(await server.client.post(CHAT, content=b"\x1f\x8b", headers=headers), 415)
            assert encoding in error["message"]
            found = await server.client.post(CHAT, json=asked(max_tokens=1), headers={"content-encoding": "identity"})
            assert found.status_code == 200

    asyncio.run(check())


def test_a_preflight_that_is_refused_gets_the_error_object(noise: LLM) -> None:
    async def check() -> None:
        async with running(noise, allow_origins=["https://good.example"]) as server:
            headers = {"origin": "https://evil.example", "access-control-request-method": "POST"}
            found = await server.client.options(CHAT, headers=headers)
            one_sentence(found, 400)
            assert "access-control-allow-origin" not in found.headers

    asyncio.run(check())


@pytest.mark.parametrize(
    "origin", ["foo", "good.example", "https://", "https://good.example/", "https://a b", "*.x", ""]
)
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="origin"):
        ServerSettings(allow_origins=[origin])


@pytest.mark.parametrize("origin", ["*", "https://good.example", "http://localhost:3000", "http://[::1]:8000"])
def test_an_origin_that_browsers_send_is_taken(origin: str) -> None:
    ServerSettings(allow_origins=[origin])


def test_operators_advice_does_not_reach_clients(noise: LLM) -> None:
    async def check() -> None:
        async with running(noise) as server:
            error = one_sentence(await server.post(TEXT, prompt=[5] * 300), 400)
            assert error["code"] == "context_length_exceeded"
            assert "max_model_len" not in error["message"]
            assert "256" in error["message"]

    asyncio.run(check())


def test_the_automatic_window_may_be_asked_for(noise: LLM) -> None:
    async def check() -> None:
        async with running(noise) as server:
            plain = await server.json(max_tokens=8)
            found = await server.json(max_tokens=8, simsd={"num_speculative_tokens": "auto"})
            assert found["choices"] == plain["choices"]

    asyncio.run(check())


@pytest.mark.parametrize("top_p", [5e-324, 1e-320, 1e-45, 1e-40, 1e-9])
def test_the_least_top_p_is_the_best_token(noise: LLM, top_p: float) -> None:
    async def check() -> None:
        async with running(noise) as server:
            best = await server.json(
                max_tokens=8, temperature=0, simsd={"ignore_eos": True, "remasking_strategy": "sequential"}
            )
            found = await server.json(
                max_tokens=8,
                temperature=1.0,
                top_p=top_p,
                simsd={"ignore_eos": True, "remasking_strategy": "sequential"},
            )
            assert found["choices"] == best["choices"]

    asyncio.run(check())


def test_a_server_has_decoded_before_its_first_request(noise: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    own = noise.with_options()

    async def check() -> None:
        async with running(own) as server:
            assert len(server.pool) == 1
            assert server.pool.leased == 0
            ready = server.pool.lease({})
            assert ready.totals.tokens > 0
            server.pool.release(ready)
            await server.json(max_tokens=4)
            assert len(server.pool) == 1  # the one that is warm
            assert await server.metric("vllm:request_success_total", finished_reason="length") == 1

    asyncio.run(check())
