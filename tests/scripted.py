"""An `LLM` around a model that says what it is told, to see what happens to known text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from simsd import LLM
from simsd.models.config import ModelConfig
from simsd.models.loader import LoadedModel
from simsd.models.tokenizer import Tokenizer
from tests.hash_model import HashCache
from tests.models.checkpoints import MASK_ID, SPECIAL, TEMPLATE, byte_tokenizer, random_config

EOS = 258


class Script:
    """Fulfils the engine's `Model` protocol: at each position it is sure of the script's token there."""

    dtype = torch.float64
    device = torch.device("cpu")

    def __init__(self, ids: Sequence[int], vocab: int) -> None:
        self.ids = torch.tensor(ids)
        self.vocab = vocab

    def make_cache(self, sequences: int, capacity: int) -> HashCache:
        return HashCache(1, sequences, capacity)

    def forward(
        self, ids: Tensor, positions: Tensor, bias: Tensor | None, cache: Any, slots: int | Tensor, length: int
    ) -> Tensor:
        return positions[..., None].double()

    def head(self, hidden: Tensor) -> Tensor:
        told = self.ids[hidden[..., 0].long().clamp(max=len(self.ids) - 1)]
        return 20.0 * torch.nn.functional.one_hot(told, self.vocab).double()


def scripted(prompt: str, answer: str, **options: Any) -> LLM:
    """An LLM that continues `prompt` with `answer`, one token a byte, and then stops."""
    tokenizer = Tokenizer(
        byte_tokenizer(), MASK_ID, chat_template=TEMPLATE, special_tokens={"eos_token": SPECIAL[2]}, name="scripted"
    )
    config = ModelConfig.from_dict(random_config(block_size=None), name="scripted")  # trained for none
    model: Any = Script([*tokenizer.encode(prompt + answer), *[EOS] * 16], config.vocab_size)
    given: dict[str, Any] = {"method": "none"} | options
    return LLM(LoadedModel(model, config, tokenizer, "scripted"), **given)
