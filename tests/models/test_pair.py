"""Where a pair is put and in which numbers, and what is refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from simsd import LLM, ConfigError, ModelError, PairError, SimsdError
from simsd.models import pair
from simsd.models.linear import Linear
from simsd.models.loader import load, resolve
from simsd.models.pair import open_pair, placements
from simsd.models.quantized import Int8Linear
from tests.models.checkpoints import random_config, write_json
from tests.tiny import folder_of

TARGET, DRAFT = folder_of(2, 0, 0.0), folder_of(2, 0, 0.02)
KINDS = {"none": (Linear, Linear), "int8-draft": (Linear, Int8Linear), "int8": (Int8Linear, Int8Linear)}


@pytest.mark.parametrize("quantize", list(KINDS))
def test_who_gets_int8_weights(quantize: str):
    target, draft = open_pair(TARGET, DRAFT, device="cpu", quantize=quantize)
    assert draft is not None
    models: list[Any] = [target.model, draft.model]
    assert tuple(type(model.layers[0].attention.qkv) for model in models) == KINDS[quantize]
    assert {type(model.lm_head) for model in models} == {Linear}
    assert [model.dtype for model in models] == [torch.float32] * 2
    assert [one.int8 for one in placements(TARGET, DRAFT, device="cpu", quantize=quantize)] == [
        kind is Int8Linear for kind in KINDS[quantize]
    ]


def test_the_draft_model_is_loaded_where_it_is_told(monkeypatch: pytest.MonkeyPatch):
    asked: dict[str, str] = {}

    def noted(*source: Any, **at: Any) -> Any:
        asked[str(source[0])] = at["device"]
        return load(*source, **at | {"device": "cpu"})

    monkeypatch.setattr(pair, "check_fits", lambda *_, **__: None)
    monkeypatch.setattr(pair, "placements", lambda *_, **__: [])
    open_pair(TARGET, DRAFT, device="cpu", draft_device="cuda:1", load=noted)
    assert asked == {str(TARGET): "cpu", str(DRAFT): "cuda:1"}
    open_pair(TARGET, DRAFT, device="cuda:0", load=noted)
    assert asked == {str(TARGET): "cuda:0", str(DRAFT): "cuda:0"}


def test_the_embedded_pair_is_placed_as_it_is_loaded():
    assert [one.name for one in placements(None, None, device="cpu")] == ["tiny", "tiny-draft"]
    own = resolve("tiny-draft")
    assert [one.name for one in placements("tiny", own, device="cpu")] == ["tiny", str(own)]
    assert [one.name for one in placements("tiny-draft", None, device="cpu")] == ["tiny-draft"]


@pytest.mark.parametrize(
    ("written", "words"), [({"vocab_size": 280}, "vocabulary sizes differ"), ({"mask_token_id": 7}, "MASK ids differ")]
)
def test_a_pair_that_cannot_work_is_refused_by_its_configurations(tmp_path: Path, written: dict[str, int], words: str):
    """Neither weights nor tokenizers are there."""
    for name, more in (("target", {}), ("draft", written)):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "config.json", random_config(**more))
    with pytest.raises(PairError, match=words):
        placements(tmp_path / "target", tmp_path / "draft", device="cpu")
    if "mask_token_id" in written:
        placements(tmp_path / "target", tmp_path / "draft", device="cpu", mask_token_id=259)


def test_a_draft_model_takes_the_targets_block_length(tmp_path: Path):
    for name, size in (("target", 8), ("draft", 4)):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "config.json", random_config(block_size=size))
    placed = placements(tmp_path / "target", tmp_path / "draft", device="cpu")
    assert [one.config.block_length for one in placed] == [8, 8]


BAD: list[tuple[dict[str, Any], type[SimsdError], str]] = [
    ({"quantize": "int4"}, ConfigError, "quantize is 'int4'; choose one of none, int8-draft, int8"),
    ({"quantize": "int8-draft"}, ConfigError, "quantize is 'int8-draft', but there is no draft model"),
    ({"draft_device": "cpu"}, ConfigError, "draft_device is 'cpu', but there is no draft model"),
    ({"draft_model": "tiny", "draft_device": "cuda:99"}, ModelError, "'cuda:99' is not there"),
    ({"draft_model": "tiny", "draft_device": "quantum"}, ModelError, "'quantum' is unknown"),
]


@pytest.mark.parametrize(("options", "error", "says"), BAD, ids=str)
def test_what_cannot_be_is_one_sentence(options: dict[str, Any], error: type[SimsdError], says: str):
    with pytest.raises(error, match=says):
        LLM(TARGET, device="cpu", **options)


def test_what_is_loaded_already_stays_as_it_is(tmp_path: Path):
    loaded: Any = load(DRAFT, device="cpu")
    for quantize, model, draft in (("int8-draft", TARGET, loaded), ("int8", loaded, TARGET)):
        with pytest.raises(ConfigError, match=f"quantize is '{quantize}', but a loaded module stays as it is"):
            open_pair(model, draft, device="cpu", quantize=quantize)
    with pytest.raises(ConfigError, match="draft_device is 'cpu', but the draft model is loaded"):
        open_pair(TARGET, loaded, draft_device="cpu")


def test_what_was_asked_for_is_told_again():
    llm = LLM(TARGET, draft_model=DRAFT, device="cpu", quantize="int8-draft")
    assert llm.loaded["quantize"] == "int8-draft"
    assert "draft_device" not in llm.loaded
    assert llm.with_options(method="none").loaded == llm.loaded


@pytest.mark.gpu
@pytest.mark.parametrize("places", [("cuda:0", "cpu"), ("cpu", "cuda:0")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_elsewhere_changes_no_text(places: tuple[str, str], temperature: float):
    from simsd import SamplingParams

    params = SamplingParams(max_tokens=24, temperature=temperature, seed=3)
    prompts = [[1 + i, 5, 9, 2, 7] for i in range(3)]
    device, draft_device = places
    options: dict[str, Any] = {"dtype": "float64", "device": device}
    apart = LLM(TARGET, draft_model=DRAFT, draft_device=draft_device, num_speculative_tokens=8, **options)
    plain = LLM(TARGET, method="none", **options)
    assert [c.token_ids for c in apart.generate(prompts, params)] == [
        c.token_ids for c in plain.generate(prompts, params)
    ]
    assert apart.totals.accepted_tokens > 0
    assert apart.loaded["draft_device"] == draft_device
