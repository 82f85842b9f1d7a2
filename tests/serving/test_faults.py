"""What clients get wrong: one sentence in OpenAI's error object, a fitting status, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from simsd import LLM
from simsd.engine.request import Sequence
from simsd.errors import NumericalError
from tests.serving.support import CHAT, TEXT, asked, running

JSON = {"content-type": "application/json"}
LONG = 2 * 2**20


def one_sentence(response: Any, status: int) -> dict[str, Any]:
    """The error object, which must be all that the client gets."""
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"]
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    message = body["error"]["message"]
    assert 10 < len(message) < 400
    assert "\n" not in message
    assert not any(word in message for word in ("Traceback", "File ", ".py", "0x"))
    return body["error"]


BODIES: list[tuple[bytes, str]] = [
    (b"", "JSON"),
    (b'{"messages": [', "JSON"),
    (b"[]", "object"),
    (b"null", "object"),
    (b'{"messages": []}', "messages"),
    (b"{}", "messages"),
    (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', "JSON"),
    (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "JSON"),
    (b'{"messages": [{"role": "user", "content": "<|MASK|>"}]}', "MASK"),
    (b'{"messages": ' + b"[" * 100_000 + b"}", "JSON"),
    (b'{"messages": [{"role": "user", "content": "x"}], "seed": ' + b"9" * 5000 + b"}", "JSON"),
]


@pytest.mark.parametrize(("body", "says"), BODIES, ids=[body[:40].decode("latin-1") for body, _ in BODIES])
def test_a_body_that_is_no_request_is_named(pair: LLM, body: bytes, says: str) -> None:
    async def check() -> None:
        async with running(pair) as server:
            error = one_sentence(await server.client.post(CHAT, content=body, headers=JSON), 400)
            assert says in error["message"]

    asyncio.run(check())


FIELDS: list[tuple[dict[str, Any], str | None]] = [
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages.0.content.0.type",
    ),
    ({"messages": [{"role": "user"}]}, "messages.0.content"),
    ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "messages.0"),
    ({"temperature": "warm"}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 2}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": 2.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"n": 10_000}, "n"),
    ({"n": 100}, "n"),
    ({"stop": ""}, "stop"),
    ({"stop": ["x", ""]}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": "x" * 300}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"logprobs": 5}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 2}, "top_logprobs"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"top_k": 5}, "top_k"),
    ({"simsd": {"method": "magic"}}, "simsd.method"),
    ({"simsd": {"metod": "exact"}}, "simsd.metod"),
    ({"simsd": {"num_speculative_tokens": 1_000_000}}, "simsd.num_speculative_tokens"),
    ({"simsd": {"drafter": "trajectory"}}, "simsd.drafter"),
    ({"simsd": {"draft_steps": 99}}, "simsd.draft_steps"),
    ({"simsd": {"num_speculative_tokens": 0}}, "simsd.num_speculative_tokens"),
    ({"simsd": {"num_speculative_tokens": "many"}}, "simsd.num_speculative_tokens"),
    ({"simsd": {"num_speculative_tokens": 2.5}}, "simsd.num_speculative_tokens"),
    ({"simsd": {"states": "none"}}, "simsd.states"),
    ({"simsd": {"method": "simsd", "states": "subsets"}}, "simsd.states"),
    ({"simsd": {"confidence_threshold": 2}}, "simsd.confidence_threshold"),
    ({"simsd": {"eb_threshold": -1}}, "simsd.eb_threshold"),
    ({"simsd": {"remasking_strategy": "luck"}}, "simsd.remasking_strategy"),
    ({"simsd": {"denoising_steps": 99}}, "simsd.denoising_steps"),
    ({"simsd": {"top_k": -1}}, "simsd.top_k"),
    ({"simsd": {"stop_token_ids": [-1]}}, "simsd.stop_token_ids"),
    ({"simsd": {"stop_token_ids": [10**9]}}, "simsd.stop_token_ids"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"messages": [{"role": "user", "content": "x " * 5000}]}, "messages"),
    ({"simsd": {"stream_rounds": True}}, "simsd"),
    ({"stream": True, "simsd": {"stream_layouts": True}}, "simsd"),
    ({"simsd": 5}, "simsd"),
]


@pytest.mark.parametrize(("fields", "param"), FIELDS, ids=[json.dumps(f)[:60] for f, _ in FIELDS])
def test_a_field_that_cannot_be_meant_is_named(pair: LLM, fields: dict[str, Any], param: str | None) -> None:
    async def check() -> None:
        async with running(pair, max_waiting=50) as server:
            error = one_sentence(await server.post(**fields), 400)
            assert error["type"] == "invalid_request_error"
            assert error["param"] == param
            assert param is None or param in error["message"] or param in ("n", "messages")
            assert len(server.pool) <= 1

    asyncio.run(check())


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ""},
        {"prompt": []},
        {"prompt": [""]},
        {"prompt": [[]]},
        {"prompt": [5, "x"]},
        {"prompt": ["a", [1]]},
        {"prompt": [999_999]},
        {"prompt": [-1]},
        {"prompt": "x", "echo": True},
        {"prompt": "x", "suffix": "y"},
        {"prompt": "x", "best_of": 3},
        {"prompt": "x", "logprobs": 5},
        {"prompt": ["x"] * 100},
    ],
    ids=str,
)
def test_completions_refuse_likewise(pair: LLM, fields: dict[str, Any]) -> None:
    async def check() -> None:
        async with running(pair, max_waiting=50) as server:
            error = one_sentence(await server.post(TEXT, **fields), 400)
            assert error["param"] in (*fields, "n")
            assert "pydantic" not in error["message"] and "instance" not in error["message"]

    asyncio.run(check())


def test_what_changes_nothing_is_taken_without_a_word(noise: LLM) -> None:
    ignored = {"user": "me", "metadata": {"a": "b"}, "store": True, "frequency_penalty": 0, "tools": [], "n": None}

    async def check() -> None:
        async with running(noise) as server:
            plain = await server.json(max_tokens=4)
            found = await server.json(max_tokens=4, stop=None, simsd=None, response_format={"type": "text"}, **ignored)
            assert found["choices"] == plain["choices"]

    asyncio.run(check())


def test_a_prompt_of_two_megabytes_is_refused_unread(noise: LLM) -> None:
    async def check() -> None:
        async with running(noise) as server:
            assert one_sentence(await server.post(text="🎉" * (LONG // 4)), 413)["code"] == "body_too_large"

    asyncio.run(check())


def test_nobody_waits_while_a_long_text_is_tokenized(noise: LLM) -> None:
    async def check() -> None:
        async with running(noise, max_body_bytes=3 * 2**20) as server:
            short = await server.json(max_tokens=8)
            huge = asyncio.create_task(server.post(text="words and " * 20_000))
            answers = [await server.json(max_tokens=8) for _ in range(3)]
            assert all(one["choices"] == short["choices"] for one in answers)
            error = one_sentence(await huge, 400)
            assert "tokens" in error["message"]

    asyncio.run(check())


def test_ten_thousand_tokens_are_as_many_as_fit(noise: LLM) -> None:
    async def check() -> None:
        async with running(noise) as server:
            found = await server.json(max_tokens=10_000, simsd={"ignore_eos": True})
            assert found["choices"][0]["finish_reason"] == "length"
            assert found["usage"]["total_tokens"] == noise.max_model_len

    asyncio.run(check())


def test_a_body_beyond_the_limit_is_refused_whether_or_not_its_length_is_told(noise: LLM) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1000

    async def check() -> None:
        async with running(noise, max_body_bytes=10_000) as server:
            error = one_sentence(await server.client.post(CHAT, content=b"x" * 10_001, headers=JSON), 413)
            assert error["code"] == "body_too_large"
            one_sentence(await server.client.post(CHAT, content=endless(), headers=JSON), 413)
            lies = JSON | {"content-length": "9" * 400}
            one_sentence(await server.client.post(CHAT, content=b"{}", headers=lies), 413)

    asyncio.run(check())


def test_a_body_that_never_ends_is_given_up(noise: LLM) -> None:
    async def dripping() -> AsyncIterator[bytes]:
        yield b'{"messages":'
        await asyncio.Event().wait()

    async def check() -> None:
        async with running(noise, stall_timeout=0.05) as server:
            one_sentence(await server.client.post(CHAT, content=dripping(), headers=JSON), 408)

    asyncio.run(check())


def test_only_json_is_taken_so_that_foreign_pages_cannot_ask(noise: LLM) -> None:
    async def check() -> None:
        async with running(noise) as server:
            for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
                body = json.dumps(asked()).encode()
                one_sentence(await server.client.post(CHAT, content=body, headers={"content-type": kind}), 415)
            found = await server.client.options(CHAT, headers={"origin": "https://evil.example"})
            assert "access-control-allow-origin" not in found.headers

    asyncio.run(check())


def test_origins_that_the_operator_names_may_ask(noise: LLM) -> None:
    preflight = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}

    async def check() -> None:
        async with running(noise, allow_origins=["https://good.example"], api_key="s3cret") as server:
            headers = {"origin": "https://good.example"} | preflight
            found = await server.client.options(CHAT, headers=headers)
            assert found.headers["access-control-allow-origin"] == "https://good.example"
            headers["origin"] = "https://evil.example"
            assert "access-control-allow-origin" not in (await server.client.options(CHAT, headers=headers)).headers

    asyncio.run(check())


def test_the_key_is_asked_for_before_anything_else(noise: LLM) -> None:
    async def check() -> None:
        async with running(noise, api_key="s3cret") as server:
            for given in (None, "Bearer wrong", "s3cret", "Basic s3cret", "Bearer", "Bearer s3cret2", "Bearer ключ"):
                headers = [] if given is None else [(b"authorization", given.encode())]
                for path in (CHAT, TEXT, "/v1/models", "/v1/nothing"):
                    found = await server.client.post(path, content=b"x", headers=headers)
                    assert one_sentence(found, 401)["code"] == "invalid_api_key"
            server.client.headers["authorization"] = "Bearer s3cret"
            await server.json(max_tokens=1)
            del server.client.headers["authorization"]
            assert (await server.client.get("/health")).status_code == 200

    asyncio.run(check())


def test_unknown_models_and_paths(noise: LLM) -> None:
    async def check() -> None:
        async with running(noise) as server:
            error = one_sentence(await server.post(model="gpt-17"), 404)
            assert error["code"] == "model_not_found"
            assert "gpt-17" in error["message"]
            one_sentence(await server.client.get("/v1/embeddings"), 404)
            one_sentence(await server.client.put("/", content=b"x"), 405)
            one_sentence(await server.client.get("/../../etc/passwd"), 404)
            one_sentence(await server.client.get("/%2e%2e/secret"), 404)

    asyncio.run(check())


def test_a_full_queue_says_when_to_return_and_loses_nobody(noise: LLM) -> None:
    async def check() -> None:
        async with running(noise, max_waiting=2) as server:
            alone = [await server.json(seed=seed, temperature=1.0, max_tokens=12) for seed in range(12)]
            found = await asyncio.gather(*(server.post(seed=s, temperature=1.0, max_tokens=12) for s in range(12)))
            full = [one for one in found if one.status_code == 429]
            for one in full:
                assert one_sentence(one, 429)["code"] == "queue_full"
                assert int(one.headers["retry-after"]) >= 1
            assert len(found) - len(full) == 4 + 2  # places and queue
            for one, expected in zip(found, alone, strict=True):
                if one.status_code == 200:
                    assert one.json()["choices"] == expected["choices"]

    asyncio.run(check())


def test_sets_of_options_are_bounded_and_idle_ones_make_room(noise: LLM) -> None:
    async def check() -> None:
        async with running(noise, max_option_sets=2) as server:
            for window in range(1, 6):
                await server.json(max_tokens=4, simsd={"num_speculative_tokens": window})
            assert len(server.pool) == 2
            many = [server.post(max_tokens=60, simsd={"num_speculative_tokens": window}) for window in range(1, 5)]
            found = await asyncio.gather(*many)
            refused = [one for one in found if one.status_code != 200]
            assert [one_sentence(one, 429)["code"] for one in refused] == ["options_busy"] * 2

    asyncio.run(check())


def test_a_request_out_of_time_frees_its_place(noise: LLM) -> None:
    async def check() -> None:
        async with running(noise, request_timeout=1e-6) as server:
            assert one_sentence(await server.post(), 504)["code"] == "request_timeout"
            assert one_sentence(await server.post(stream=True), 504)["code"] == "request_timeout"
            await server.settled()

    asyncio.run(check())


def test_a_failing_round_is_an_error_without_details_and_the_server_lives_on(
    noise: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, calls = LLM.step, 0

    def failing(self: LLM) -> None:
        nonlocal calls
        calls += 1
        if calls in (1, 5):
            raise RuntimeError("CUDA error at 0xdeadbeef in /srv/secret.py")
        step(self)

    async def check() -> None:
        async with running(noise) as server:
            monkeypatch.setattr(LLM, "step", failing)
            error = one_sentence(await server.post(max_tokens=40), 500)
            assert (error["code"], error["type"]) == ("internal_error", "server_error")
            response = await server.post(max_tokens=40, stream=True)
            last = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")][-1]
            assert last["error"]["code"] == "internal_error"
            assert "secret" not in response.text
            await server.json(max_tokens=40)
            assert server.engine.alive

    asyncio.run(check())


def test_numbers_that_are_none_fail_one_request_alone(noise: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    put = Sequence.put

    def broken(self: Sequence, *args: Any) -> int:
        done = put(self, *args)
        if self.params.max_tokens == 9:
            self.error = NumericalError("the target's logits were not numbers at position 3")
            self.finish("error", 0)
        return done

    monkeypatch.setattr(Sequence, "put", broken)

    async def check() -> None:
        async with running(noise) as server:
            good = await server.json(max_tokens=8)
            bad, other = await asyncio.gather(server.post(max_tokens=9), server.json(max_tokens=8))
            assert one_sentence(bad, 500)["code"] == "numerical_error"
            assert other["choices"] == good["choices"]

    asyncio.run(check())


def test_a_mistake_in_a_route_is_logged_with_its_id_and_told_without_details(
    noise: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("an inner detail")

    monkeypatch.setattr("simsd.serving.openai_format.usage", broken)

    async def check() -> None:
        async with running(noise) as server:
            found = await server.post(max_tokens=2)
            error = one_sentence(found, 500)
            assert "inner" not in error["message"]
            assert found.headers["x-request-id"] in error["message"]

    asyncio.run(check())
    (record,) = [one for one in caplog.records if one.getMessage() == "unexpected_error"]
    assert record.exc_info is not None
