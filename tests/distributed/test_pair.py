"""Decoding on two ranks gives one process's text; what cannot be split is refused before a process starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from simsd import LLM, SamplingParams
from simsd.errors import ConfigError, ModelError
from simsd.evaluation.suites import load_suite
from simsd.models.loader import load
from tests.distributed.support import ASKED, decode, make
from tests.models.checkpoints import MOE, random_checkpoint
from tests.tiny import prompt_of

FAMILIES: dict[str, dict[str, Any]] = {"dense": {"tie_word_embeddings": None}, "experts": MOE | {"num_experts": 7}}


@pytest.fixture(scope="module", params=list(FAMILIES))
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, LLM]]:
    """The same pair whole and on two ranks."""
    folder = tmp_path_factory.mktemp("pair")
    whole = make(folder, 1, FAMILIES[request.param], max_num_seqs=2)
    split = make(folder, 2, FAMILIES[request.param], max_num_seqs=2)
    yield whole, split
    split.close()


@pytest.mark.parametrize("method", ["none", "simsd", "exact", "exact-draft-order"])
def test_two_ranks_give_the_text_of_one_process(both: tuple[LLM, LLM], method: str):
    whole, split = (llm.with_options(method=method) for llm in both)
    assert decode(split) == decode(whole)
    assert split.totals.target_forwards == whole.totals.target_forwards
    assert split.tensor_parallel_size == 2


def test_a_common_beginning_is_taken_over_on_all_ranks(both: tuple[LLM, LLM]):
    """By a sequence that runs beside another, and by one whose place held the text before."""
    head = prompt_of(32)
    prompts = [[*head, 7, 8], [*head, 9], [*head, 7, 8, 3]]
    whole, split = (llm.with_options(method="exact") for llm in both)
    found = [[c.token_ids for c in split.generate(prompts, ASKED[0])] for _ in range(2)]
    expected = [c.token_ids for c in whole.with_options(prefix_caching=False).generate(prompts, ASKED[0])]
    assert found == [expected, expected]


def test_scores_are_those_of_one_process(both: tuple[LLM, LLM]):
    (one,), (other,) = (llm.score([5, 9, 30], [[7, 8, 9, 10, 11, 12]]) for llm in both)
    assert one.logprobs == pytest.approx(other.logprobs, rel=1e-9)


def test_a_window_that_follows_the_clock_changes_no_text(both: tuple[LLM, LLM]):
    """Its costs are measured in forwards of all ranks; what is decided by them is rank 0's alone."""
    whole, split = both
    auto = split.with_options(method="exact", num_speculative_tokens="auto")
    assert decode(auto) == decode(whole.with_options(method="none"))
    (table,) = split._costs._tables.values()
    assert min(table.seconds) > 0


def test_an_int8_draft_model_changes_no_text(tmp_path: Path):
    split = make(tmp_path, 2, method="exact", quantize="int8-draft")
    assert decode(split) == decode(make(tmp_path, 1, method="none"))
    assert split.totals.accepted_tokens > 0
    split.close()


def test_exact_is_ordinary_decoding_of_the_same_int8_ranks(tmp_path: Path):
    exact = make(tmp_path, 2, FAMILIES["experts"], method="exact", quantize="int8")
    ordinary = decode(exact.with_options(method="none"))
    assert decode(exact) == ordinary
    assert exact.totals.accepted_tokens > 0
    assert decode(make(tmp_path, 1, method="none")) != ordinary  # else this would say nothing
    exact.close()


def test_the_embedded_pair_in_float32_answers_alike():
    whole, split = LLM(dtype="float32", device="cpu"), LLM(dtype="float32", device="cpu", tensor_parallel_size=2)
    questions = [q.question for skill in ("math", "chat", "trivia") for q in load_suite(skill, 1)]
    asked = [[{"role": "user", "content": question}] for question in questions]
    found, expected = (llm.chat(asked, SamplingParams(max_tokens=14)) for llm in (split, whole))
    assert [a.token_ids for a in found] == [a.token_ids for a in expected]
    split.close()


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("simsd.distributed.process.Process", refuse)


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize(
    ("size", "problem"),
    [(3, "cannot be split evenly"), (0, "whole number of 1 or more"), ("2", "whole number"), (True, "whole number")],
)
def test_a_size_that_does_not_fit_is_refused(size: Any, problem: str):
    with pytest.raises(ConfigError, match=f"tensor_parallel_size is {size!r}.*{problem}"):
        LLM(device="cpu", tensor_parallel_size=size)


@pytest.mark.usefixtures("no_process")
def test_checkpoints_are_looked_at_first(tmp_path: Path):
    folder = random_checkpoint(tmp_path / "odd", num_attention_heads=6, num_key_value_heads=3)
    with pytest.raises(ConfigError, match=r"choose one of 1, 3, 6"):
        LLM(folder, device="cpu", tensor_parallel_size=2)
    with pytest.raises(ModelError, match="there is no checkpoint folder"):
        LLM(tmp_path / "nothing", device="cpu", tensor_parallel_size=2)


@pytest.mark.usefixtures("no_process")
def test_what_is_loaded_already_cannot_be_split(tmp_path: Path):
    folder = random_checkpoint(tmp_path)
    loaded: Any = load(folder, "float64", "cpu")
    with pytest.raises(ConfigError, match="LoadedModel is loaded as a whole"):
        LLM(loaded, tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="Linear is loaded as a whole"):
        LLM(folder, draft_model=torch.nn.Linear(1, 1), device="cpu", tensor_parallel_size=2)


@pytest.mark.usefixtures("no_process")
def test_a_split_draft_model_has_no_device_of_its_own():
    with pytest.raises(ConfigError, match="draft_device is 'cpu', but tensor_parallel_size 2 splits") as caught:
        LLM(device="cpu", draft_device="cpu", tensor_parallel_size=2)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_process")
def test_ranks_cannot_draft_ahead():
    with pytest.raises(ConfigError, match="draft_ahead is True, but tensor_parallel_size 2 splits") as caught:
        LLM(device="cpu", draft_ahead=True, tensor_parallel_size=2)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_process")
def test_every_rank_needs_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.distributed.is_backend_available", lambda backend: backend == "nccl")
    with pytest.raises(ConfigError, match="is 4, but there are 2 CUDA devices"):
        LLM(device="cuda", tensor_parallel_size=4)
    with pytest.raises(ConfigError, match="device 'cuda:1' is one GPU"):
        LLM(device="cuda:1", tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="this PyTorch has no gloo"):
        LLM(device="cpu", tensor_parallel_size=2)
