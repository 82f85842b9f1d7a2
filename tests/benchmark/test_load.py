"""The load tool, against a server of the project and against others that misbehave."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI, Request, Response

from simsd import LLM
from simsd.benchmark.load import Ask, LoadResult, Timing, measure, spread
from simsd.errors import ConfigError
from simsd.serving.app import create_app
from simsd.serving.settings import ServerSettings
from tests.serving.support import listening


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    from tests.tiny import write_checkpoint

    folder = write_checkpoint(tmp_path_factory.mktemp("noise"), vocab_size=272, mask_token_id=259)
    return LLM(folder, device="cpu", max_num_seqs=4, method="exact", drafter="self")


def test_every_question_is_asked_and_counted(noise: LLM) -> None:
    app = create_app(noise, ServerSettings(model_name="some/model", api_key="s3cret"))
    ask = Ask(api_key="s3cret", max_tokens=12, extension={"ignore_eos": True})
    done: list[int] = []
    with listening(app) as url:
        conversation = [{"role": "user", "content": "b"}]
        result = measure(f"{url}/v1", ["a", conversation], concurrency=3, requests=7, ask=ask, advance=done.append)
    assert sum(done) == len(result.timings) == 7
    found = result.to_dict()
    assert (found["model"], found["requests"], found["failures"]) == ("some/model", 7, {})
    assert found["tokens"] == 7 * 12
    assert found["tokens_per_second"] == pytest.approx(7 * 12 / found["seconds"])
    for timing in result.timings:
        assert 0 < timing.first <= timing.total
        assert timing.prompt_tokens > 0
    assert found["latency"]["p50"] <= found["latency"]["p95"] <= found["latency"]["p99"]
    assert found["tokens_per_forward"] > 0
    assert 0 <= found["acceptance_rate"] <= 1
    assert result.table().row_count == 3


def test_what_goes_wrong_is_counted_and_not_timed(noise: LLM) -> None:
    app = create_app(noise, ServerSettings(max_waiting=0))  # four places and no queue
    ask = Ask(max_tokens=40, extension={"ignore_eos": True})
    with listening(app) as url:
        result = measure(url, ["x"], concurrency=12, requests=12, ask=ask)
    assert set(result.failures) == {"status 429"}
    assert len(result.answered) + result.failures["status 429"] == 12
    assert result.tokens == 40 * len(result.answered)


def test_a_server_that_is_none_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"no model server answers at http://127\.0\.0\.1:1 "):
        measure("http://127.0.0.1:1", ["x"])
    with pytest.raises(ConfigError, match="no model server"):
        measure("not a url", ["x"])
    app = FastAPI()

    @app.get("/v1/models")
    def models() -> Any:
        return {"data": [{"id": "other"}]}

    @app.post("/v1/chat/completions")
    def chat(request: Request) -> Response:
        return Response('data: {"error": {"code": "broken"}}\n\n', media_type="text/event-stream")

    with listening(app) as url:
        with pytest.raises(ConfigError, match="does not answer: broken"):
            measure(url, ["x"])
        with pytest.raises(ConfigError, match="concurrency is 0"):
            measure(url, ["x"], concurrency=0)
        with pytest.raises(ConfigError, match="no question"):
            measure(url, [])


def test_the_figures_of_known_timings() -> None:
    timings = [Timing(first=0.1 * k, total=0.1 * k + 0.9, tokens=10) for k in range(1, 101)]
    result = LoadResult("u", "m", 2, 50.0, [*timings, Timing(1.0, 1.0, 1), Timing(failure="status 500")])
    found = result.to_dict()
    assert found["requests_per_second"] == pytest.approx(101 / 50)
    assert found["tokens_per_second"] == pytest.approx(1001 / 50)
    assert found["time_per_token"]["p99"] == pytest.approx(0.1)
    assert found["failures"] == {"status 500": 1}
    assert found["acceptance_rate"] is None
    assert spread([float(k) for k in range(101)]) == {"mean": 50.0, "p50": 50.0, "p95": 95.0, "p99": 99.0}
    assert spread([]) is None
