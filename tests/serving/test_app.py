"""The interface as OpenAI defines it, on the embedded pair: answers, streams, counts, and the extension."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from simsd import LLM, SamplingParams
from simsd.engine import costs
from simsd.engine.costs import Costs
from tests.serving.support import ANSWER, CHAT, QUESTION, TEXT, running, text_of

RAW = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"


def test_a_chat_is_answered(pair: LLM) -> None:
    async def check() -> None:
        async with running(pair) as server:
            found = await server.json()
            assert found["object"] == "chat.completion"
            assert found["model"] == "tiny"
            assert found["id"].startswith("chatcmpl-")
            (choice,) = found["choices"]
            assert choice["message"] == {"role": "assistant", "content": ANSWER, "refusal": None}
            assert (choice["finish_reason"], choice["logprobs"]) == ("stop", None)
            expected = pair.chat([{"role": "user", "content": QUESTION}])[0].stats
            assert found["usage"].pop("prompt_tokens_details") == {"cached_tokens": 0}
            assert found["usage"] == {
                "prompt_tokens": expected.prompt_tokens,
                "completion_tokens": expected.tokens,
                "total_tokens": expected.prompt_tokens + expected.tokens,
            }
            assert found["simsd"]["method"] == "exact"
            assert found["simsd"]["stats"]["target_forwards"] == expected.target_forwards
            assert found["simsd"]["stats"]["acceptance_rate"] == expected.acceptance_rate

    asyncio.run(check())


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_stream_is_the_answer_in_pieces(pair: LLM, path: str) -> None:
    async def check() -> None:
        async with running(pair) as server:
            body: dict[str, Any] = {} if path == CHAT else {"prompt": RAW, "max_tokens": 100}
            whole = await server.json(path, **body)
            chunks = await server.stream(path, **body)
            assert text_of(chunks) == ANSWER
            assert len({chunk["id"] for chunk in chunks}) == 1
            assert len(chunks) > 5
            assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
            assert all("usage" not in chunk for chunk in chunks)
            if path == CHAT:
                assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            assert whole["choices"][0].get("text", ANSWER) == ANSWER
            same = ("tokens", "rounds", "drafted_tokens", "accepted_tokens")
            stats, other = chunks[-1]["simsd"]["stats"], whole["simsd"]["stats"]
            assert [stats[name] for name in same] == [other[name] for name in same]

    asyncio.run(check())


def test_usage_comes_last_in_a_stream_that_asks_for_it(pair: LLM) -> None:
    async def check() -> None:
        async with running(pair) as server:
            chunks = await server.stream(n=2, max_tokens=6, stream_options={"include_usage": True})
            usage = (await server.json(n=2, max_tokens=6))["usage"]
            for one in (usage, chunks[-1]["usage"]):  # the second finds the prompt cached
                one.pop("prompt_tokens_details")
            assert chunks[-1]["choices"] == []
            assert chunks[-1]["usage"] == usage
            assert all(chunk["usage"] is None for chunk in chunks[:-1])
            assert usage["completion_tokens"] == 12
            assert usage["prompt_tokens"] == (await server.json(max_tokens=1))["usage"]["prompt_tokens"]

    asyncio.run(check())


def test_a_method_is_chosen_for_each_request_and_all_share_the_server(pair: LLM) -> None:
    methods = ("none", "simsd", "exact", "exact-draft-order")

    async def check() -> None:
        async with running(pair) as server:
            found = await asyncio.gather(*(server.json(max_tokens=20, simsd={"method": name}) for name in methods))
            assert [one["simsd"]["method"] for one in found] == list(methods)
            texts = [one["choices"][0]["message"]["content"] for one in found]
            assert texts[0] == texts[2] == ANSWER[:20]
            stats = [one["simsd"]["stats"] for one in found]
            assert stats[0]["drafted_tokens"] == 0
            assert stats[2]["target_forwards"] < stats[0]["target_forwards"] / 2
            assert len(server.pool) == 4

    asyncio.run(check())


def test_options_of_the_extension_reach_the_decoder(pair: LLM) -> None:
    ordinary, schedule = {"method": "none"}, {"remasking_strategy": "low_confidence_dynamic"}

    async def check() -> None:
        async with running(pair) as server:
            dynamic = await server.json(max_tokens=12, simsd=ordinary | schedule)
            static = await server.json(max_tokens=12, simsd=ordinary)
            assert dynamic["simsd"]["stats"]["rounds"] < static["simsd"]["stats"]["rounds"]
            few = await server.json(max_tokens=12, simsd={"num_speculative_tokens": 1, "drafter": "lookup"})
            histogram = few["simsd"]["stats"]["acceptance_histogram"]
            assert len(histogram) <= 2
            assert few["choices"][0]["message"]["content"] == ANSWER[:12]
            endless = await server.json(simsd={"ignore_eos": True}, max_tokens=55)
            assert endless["usage"]["completion_tokens"] == 55
            assert endless["choices"][0]["finish_reason"] == "length"
            cut = await server.json(simsd={"stop_token_ids": pair.tokenizer.encode(",")[:1]})
            assert cut["choices"][0]["message"]["content"] == "28"

    asyncio.run(check())


def test_one_seed_gives_one_text_and_further_answers_have_further_seeds(noise: LLM) -> None:
    hot: dict[str, Any] = {"temperature": 1.5, "max_completion_tokens": 16}

    async def check() -> None:
        async with running(noise) as server:
            many = await server.json(n=3, seed=5, **hot)
            texts = [choice["message"]["content"] for choice in many["choices"]]
            alone = [await server.json(seed=seed, **hot) for seed in (5, 6, 7)]
            assert texts == [one["choices"][0]["message"]["content"] for one in alone]
            assert len(set(texts)) > 1
            chunks = await server.stream(n=3, seed=5, **hot)
            assert [text_of(chunks, index) for index in range(3)] == texts
            ordinary = await server.json(n=3, seed=5, simsd={"method": "none"}, **hot)
            assert [choice["message"]["content"] for choice in ordinary["choices"]] == texts
            assert (await server.post(seed=-1, **hot)).status_code == 200  # OpenAI's seeds have a sign

    asyncio.run(check())


def test_stop_strings_end_the_text(pair: LLM) -> None:
    async def check() -> None:
        async with running(pair) as server:
            for stop in (", 52", [", 60", ", 52"]):
                found = await server.json(stop=stop)
                assert found["choices"][0]["message"]["content"] == "28, 36, 44"
                assert found["choices"][0]["finish_reason"] == "stop"
                assert text_of(await server.stream(stop=stop)) == "28, 36, 44"

    asyncio.run(check())


def test_log_probabilities_of_a_chat(pair: LLM) -> None:
    async def check() -> None:
        async with running(pair) as server:
            found = await server.json(logprobs=True)
            content = found["choices"][0]["logprobs"]["content"]
            assert "".join(one["token"] for one in content) == ANSWER
            assert b"".join(bytes(one["bytes"]) for one in content).decode() == ANSWER
            conversation = [{"role": "user", "content": QUESTION}]
            expected = pair.chat(conversation, SamplingParams(logprobs=True))[0].logprobs
            assert [one["logprob"] for one in content] == expected
            chunks = await server.stream(logprobs=True)
            told = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
            assert [one for part in told for one in part["content"]] == content

    asyncio.run(check())


def test_log_probabilities_of_a_completion_know_where_tokens_begin(pair: LLM) -> None:
    async def check() -> None:
        async with running(pair) as server:
            found = (await server.json(TEXT, prompt=RAW, logprobs=1, max_tokens=30))["choices"][0]
            told = found["logprobs"]
            for token, begin in zip(told["tokens"], told["text_offset"], strict=True):
                assert found["text"][begin:].startswith(token)
            values = [next(iter(one.values())) for one in told["top_logprobs"]]
            assert values == told["token_logprobs"]
            chunks = await server.stream(TEXT, prompt=RAW, logprobs=0, max_tokens=30)
            parts = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"]]
            assert [at for part in parts for at in part["text_offset"]] == told["text_offset"]
            assert [value for part in parts for value in part["token_logprobs"]] == told["token_logprobs"]

    asyncio.run(check())


def test_several_prompts_of_text_or_ids(pair: LLM) -> None:
    ids = pair.tokenizer.encode(RAW)

    async def check() -> None:
        async with running(pair) as server:
            many = await server.json(TEXT, prompt=[RAW, "What"], n=2, max_tokens=6)
            assert [choice["index"] for choice in many["choices"]] == [0, 1, 2, 3]
            assert [choice["text"] for choice in many["choices"][:2]] == [ANSWER[:6]] * 2
            assert many["usage"]["prompt_tokens"] == len(ids) + len(pair.tokenizer.encode("What"))
            for prompt in (ids, [ids]):
                assert (await server.json(TEXT, prompt=prompt, max_tokens=6))["choices"][0]["text"] == ANSWER[:6]
            assert (await server.json(TEXT, prompt=ids))["usage"]["completion_tokens"] == 16

    asyncio.run(check())


def test_content_may_come_in_parts_and_the_newer_role_is_known(pair: LLM) -> None:
    parts = [{"type": "text", "text": QUESTION[:9]}, {"type": "text", "text": QUESTION[9:]}]
    developer = [{"role": "developer", "content": "Hi"}, {"role": "user", "content": QUESTION}]
    system = [{"role": "system", "content": "Hi"}, {"role": "user", "content": QUESTION}]

    async def check() -> None:
        async with running(pair) as server:
            found = await server.json(messages=[{"role": "user", "content": parts}], max_tokens=6)
            assert found["choices"][0]["message"]["content"] == ANSWER[:6]
            both = [await server.json(messages=messages, max_tokens=6) for messages in (developer, system)]
            assert both[0]["choices"] == both[1]["choices"]

    asyncio.run(check())


def test_steps_and_rounds_tell_how_the_text_came(pair: LLM) -> None:
    async def check() -> None:
        async with running(pair) as server:
            expected = pair.chat([{"role": "user", "content": QUESTION}])[0]
            chunks = await server.stream(simsd={"stream_steps": True, "stream_rounds": True})
            assert text_of(chunks) == ANSWER
            told = [chunk["simsd"] for chunk in chunks if "simsd" in chunk]
            assert [token for part in told for token in part.get("token_ids", [])] == expected.token_ids
            assert [step for part in told for step in part.get("steps", [])] == expected.steps
            rounds = [part["round"] for part in told if "round" in part]
            assert [one["index"] for one in rounds] == list(range(expected.stats.rounds))
            places = [place for one in rounds for place in one["places"]]
            accepted = sum(place["verdict"] == "accepted" for place in places)
            assert accepted == expected.stats.accepted_tokens
            shown: dict[int, str] = {}
            for place in places:
                assert (place["before"] is None) == (place["verdict"] != "known")
                assert (place["after"] is None) == (place["verdict"] in ("rejected", "masked"))
                assert (place["drafted"] is None) == (place["draft_step"] is None)
                if place["after"] is not None:
                    shown[place["position"]] = place["after"]
            begin = expected.stats.prompt_tokens
            assert "".join(shown[begin + at] for at in range(len(expected.token_ids))) == ANSWER

    asyncio.run(check())


def test_models_health_and_metrics(pair: LLM) -> None:
    async def check() -> None:
        async with running(pair, model_name="org/some-model") as server:
            listed = (await server.client.get("/v1/models")).json()
            assert [model["id"] for model in listed["data"]] == ["org/some-model"]
            assert (await server.client.get("/v1/models/org/some-model")).json() == listed["data"][0]
            assert listed["data"][0]["simsd"]["embedded"]
            assert listed["data"][0]["simsd"]["block_length"] == pair.options.block_length
            assert (await server.client.get("/v1/models/other")).status_code == 404
            assert (await server.client.get("/health")).json() == {"status": "ok"}
            await server.json(model="org/some-model", max_tokens=1)
            text = (await server.client.get("/metrics")).text
            assert (
                'vllm:request_success_total{engine="0",finished_reason="length",model_name="org/some-model"} 1.0'
                in text
            )
            assert "simsd" in (await server.client.get("/")).text

    asyncio.run(check())


def test_the_operators_defaults_hold_where_a_request_says_nothing(pair: LLM) -> None:
    async def check() -> None:
        defaults = SamplingParams(temperature=1.5, seed=5)
        async with running(pair, defaults=defaults, max_tokens=9) as server:
            found = await server.json()
            assert found["usage"]["completion_tokens"] == 9
            other = await server.json(temperature=1.5, seed=5, max_tokens=9)
            assert found["choices"] == other["choices"]
            assert (await server.json(temperature=0, max_tokens=6))["choices"][0]["message"]["content"] == ANSWER[:6]

    asyncio.run(check())


def test_a_server_has_measured_the_forwards_before_its_first_request(
    pair: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = pair.with_options(method="none", num_speculative_tokens="auto")  # a request may ask for another method
    own._costs = Costs()

    async def check() -> None:
        async with running(own) as server:
            monkeypatch.setattr(costs, "measure", lambda *_: pytest.fail("a request waited for the measuring"))
            found = await server.json(simsd={"method": "exact"})
            assert found["simsd"]["method"] == "exact"

    asyncio.run(check())
