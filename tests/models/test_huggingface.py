"""A wrapped module's logits are the module's own, however the cache is used; what it cannot do is found out at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3ForCausalLM,
    Qwen3Model,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from simsd.errors import ModelError, PromptError
from simsd.models.huggingface import HuggingFaceModel, wrap
from simsd.models.shifted import Shifted
from simsd.models.tokenizer import Tokenizer
from tests.models.checkpoints import TEMPLATE, byte_tokenizer
from tests.modules import MASK, SIZES, filled, llama, qwen3

GIVEN: dict[str, Any] = {"mask_token_id": MASK, "block_length": 4}


def cohere() -> Any:
    return filled(CohereForCausalLM(CohereConfig(**SIZES, logit_scale=0.25)))


def granite() -> Any:
    return filled(GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=3.0, embedding_multiplier=2.0)))


def gemma2() -> Any:
    full = ["full_attention"] * 2
    return filled(Gemma2ForCausalLM(Gemma2Config(**SIZES, layer_types=full, final_logit_softcapping=2.0)))


def qwen3_moe() -> Any:
    experts: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    module = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES | experts))
    if hasattr(module, "set_experts_implementation"):
        module.set_experts_implementation("eager")  # the grouped product of transformers 5 knows no float64
    return filled(module)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(5)
    ids, positions = torch.randint(0, MASK, (2, 12)), torch.randint(0, 200, (2, 12))
    seen = (torch.rand(2, 12, 12) < 0.5).tril() | torch.eye(12, dtype=torch.bool)
    return ids, positions, torch.zeros(seen.shape).double().masked_fill(~seen, -torch.inf)[:, None]


@pytest.mark.parametrize("make", [qwen3, llama, cohere, granite, gemma2, qwen3_moe])
@pytest.mark.parametrize("scattered", [False, True])
@torch.inference_mode()
def test_logits_in_pieces_are_the_modules_own(make, scattered: bool):
    module = make()
    model = wrap(module, **GIVEN).model
    ids, positions, bias = inputs()
    given = {"input_ids": ids, "position_ids": positions, "attention_mask": bias}
    expected = module(**given, use_cache=False).logits
    cache = model.make_cache(2, 13)
    for start in range(0, 12, 3):
        part, end = slice(start, start + 3), start + 3
        slots = torch.arange(start, end).expand(2, 3) if scattered else start
        hidden = model.forward(ids[:, part], positions[:, part], bias[:, :, part, :end], cache, slots, end)
        assert (model.head(hidden) - expected[:, part]).abs().max() < 1e-5 * expected.abs().max()


@torch.inference_mode()
def test_without_a_mask_every_row_sees_every_slot():
    module = qwen3()
    model = HuggingFaceModel(module)
    ids, positions, bias = inputs()
    cache = model.make_cache(2, 12)
    hidden = model.forward(ids, positions, None, cache, 0, 12)
    seen = model.forward(ids, positions, torch.zeros_like(bias), cache, 0, 12)
    assert torch.equal(hidden, seen)


def test_what_the_engine_needs_to_know_comes_from_the_modules_configuration():
    module = qwen3(eos_token_id=[7, 8], block_size=8, mask_token_id=5)
    config = wrap(module).config
    assert (config.block_length, config.mask_token_id, config.stop_token_ids) == (8, 5, (7, 8))
    assert (config.vocab_size, config.max_position_embeddings) == (64, 256)
    config = wrap(module, mask_token_id=6, block_length=2).config
    assert (config.block_length, config.mask_token_id) == (2, 6)
    assert isinstance(wrap(module, shifted_logits=True).model, Shifted)


@pytest.mark.parametrize(("given", "words"), [({"block_length": 4}, "mask_token_id"), ({"mask_token_id": 1}, "block_")])
def test_what_the_configuration_does_not_say_must_be_given(given: dict[str, Any], words: str):
    with pytest.raises(ModelError, match=f"does not say its {words}.*pass {words}"):
        wrap(qwen3(), **given)


def test_tokenizers_of_transformers_and_ids_alone():
    special = {"eos_token": "<|im_end|>", "mask_token": "<|MASK|>"}
    theirs = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), chat_template=TEMPLATE, **special)
    loaded = wrap(qwen3(vocab_size=272), theirs, block_length=4)
    assert loaded.config.mask_token_id == 259
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("Grüße")) == "Grüße"
    chat = loaded.tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert loaded.tokenizer.decode(chat).endswith("assistant\n")
    assert loaded.tokenizer.fingerprint == Tokenizer(byte_tokenizer(), 259).fingerprint
    ids = wrap(qwen3(), **GIVEN).tokenizer
    assert (ids.decode([5, 0, 7]), ids.vocab_size) == ("5 0 7", 64)
    with pytest.raises(PromptError, match="came without a tokenizer; pass token ids"):
        ids.encode("text")
    with pytest.raises(ModelError, match="int is not a fast tokenizer"):
        wrap(qwen3(), 3, **GIVEN)


@pytest.mark.parametrize(
    ("make", "window"),
    [
        (lambda **more: MistralForCausalLM(MistralConfig(**SIZES, **more)), 4),
        (lambda **more: Phi3ForCausalLM(Phi3Config(**SIZES, **more)), 4),
        (lambda **more: MistralForCausalLM(MistralConfig(**SIZES, **more)), 255),
    ],
)
def test_a_window_that_a_text_can_outgrow_is_refused(make: Any, window: int):
    """Modules without a switch and without types of layers: the number alone says it."""
    with pytest.raises(ModelError, match=rf"sliding-window attention \({window} tokens\) is not supported"):
        wrap(filled(make(sliding_window=window)), **GIVEN)
    for none in (None, 256):
        assert wrap(filled(make(sliding_window=none)), **GIVEN).config.max_position_embeddings == 256


def test_a_window_that_is_switched_off_is_none():
    assert wrap(qwen3(use_sliding_window=False, sliding_window=4), **GIVEN).config.num_hidden_layers == 2


def test_numbers_that_the_modules_layers_cannot_take_are_the_cause_that_is_told():
    experts: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    module = filled(Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **experts)))
    with pytest.raises(ModelError, match=r"cannot be run in float64 \(.*Double\); load it in float32 or bfloat16"):
        wrap(module, **GIVEN)
    assert wrap(module.float(), **GIVEN).model.dtype == torch.float32


class CausalAnyway(Qwen3ForCausalLM):
    def forward(self, *args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class SeesAll(Qwen3ForCausalLM):
    def forward(self, *args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        return super().forward(*args, attention_mask=torch.zeros_like(attention_mask), **kwargs)


class Unplaced(Qwen3ForCausalLM):
    def forward(self, *args: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class OtherLogits(Qwen3ForCausalLM):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        found = super().forward(*args, **kwargs)
        found.logits = 2 * found.logits  # type: ignore[operator]
        return found


class Raises(Qwen3ForCausalLM):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no kernel")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (CausalAnyway, "a row does not see the token behind it"),
        (SeesAll, "a row sees a token that the mask hides"),
        (Unplaced, "does not heed position_ids"),
        (OtherLogits, "logits with a cache are not those without"),
        (Raises, "cannot be run with a 4-D mask.*RuntimeError: no kernel"),
    ],
)
def test_a_module_that_does_not_do_what_blocks_need_is_refused(kind: Any, words: str):
    module = qwen3()
    module.__class__ = kind
    with pytest.raises(ModelError, match=words):
        wrap(module, **GIVEN)


def test_modules_of_another_kind_are_refused():
    with pytest.raises(ModelError, match="Linear is not a transformers model"):
        wrap(torch.nn.Linear(2, 2), **GIVEN)
    with pytest.raises(ModelError, match="no language-model head"):
        wrap(Qwen3Model(qwen3().config).eval(), **GIVEN)
    with pytest.raises(ModelError, match="in training mode; call eval"):
        wrap(qwen3().train(), **GIVEN)
    with pytest.raises(ModelError, match="sliding-window"):
        wrap(filled(Gemma2ForCausalLM(Gemma2Config(**SIZES))), **GIVEN)
    mamba = MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=8, num_hidden_layers=1, state_size=2))
    with pytest.raises(ModelError, match="takes no attention_mask, position_ids and cache"):
        wrap(mamba.eval(), **GIVEN)
    bert = BertForMaskedLM(BertConfig(hidden_size=8, num_attention_heads=2, intermediate_size=8, num_hidden_layers=1))
    with pytest.raises(ModelError, match="BertForMaskedLM"):
        wrap(bert.eval(), **GIVEN)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [qwen3, qwen3_moe, cohere])
def test_modules_of_every_dtype_pass(make, dtype: torch.dtype):
    assert wrap(make().to(dtype), **GIVEN).model.dtype == dtype
