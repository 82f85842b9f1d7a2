"""What is refused before Ray is started: by the same sentences as an `LLM` with these arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simsd import LLM
from simsd.cluster.check import check
from simsd.cluster.settings import ReplicaPlan
from simsd.errors import ModelError, SimsdError
from tests.models.checkpoints import random_checkpoint


@pytest.mark.parametrize(
    "llm",
    [
        {"model": "./nowhere"},
        {"draft_model": "./nowhere"},
        {"draft_model": "odd"},  # another vocabulary
        {"model": "odd", "tensor_parallel_size": 5},
        {"tensor_parallel_size": 0},
        {"method": "fastest"},
        {"layout": "unrolled", "draft_steps": 0},
        {"num_speculative_tokens": 0},
        {"block_length": 0},
        {"max_model_len": 1},
        {"device": "cuda:99"},
        {"dtype": "int3"},
        {"draft_device": "cpu", "tensor_parallel_size": 2},
        {"draft_ahead": True, "tensor_parallel_size": 2},
        {"enforce_eager": "yes"},
        {"quantize": "int4"},
        {"model": "odd", "quantize": "int8-draft"},
        {"remasking_strategy": "entropy_bounded", "eb_threshold": -1.0},
        {"denoising_steps": 99},
    ],
)
@pytest.mark.parametrize("here", [True, False])
def test_what_an_llm_refuses_is_refused_first(llm: dict[str, Any], here: bool, tmp_path: Path) -> None:
    given: dict[str, Any] = {"device": "cpu"} | llm
    for name in ("model", "draft_model"):
        if given.get(name) == "odd":
            given[name] = str(random_checkpoint(tmp_path / "odd"))
    with pytest.raises(SimsdError) as expected:
        LLM(**given)
    if not here and ("./nowhere" in llm.values() or "cuda:99" in llm.values()):
        check(ReplicaPlan(llm=given), here=False)  # that is for the machine of the replica to say
        return
    with pytest.raises(SimsdError) as found:
        check(ReplicaPlan(llm=given), here=here)
    assert (type(found.value), str(found.value)) == (type(expected.value), str(expected.value))


def test_memory_is_asked_for_where_the_replicas_will_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simsd.models.fit.free_bytes", lambda device: 2**20)
    with pytest.raises(ModelError, match="are free on cpu"):
        check(ReplicaPlan(llm={"device": "cpu"}), here=True)
    check(ReplicaPlan(llm={"device": "cpu"}), here=False)


@pytest.mark.parametrize("here", [True, False])
def test_what_an_llm_takes_is_taken(here: bool) -> None:
    check(ReplicaPlan(llm={"device": "cpu", "method": "none", "tensor_parallel_size": 2}), here=here)
    check(ReplicaPlan(llm={"model": "tiny", "prefix_caching": True, "max_model_len": None}), here=here)
