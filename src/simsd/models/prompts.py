"""Prompts as users pass them: text, ids in a list, array or tensor; checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simsd.errors import LongPromptError, PromptError
from simsd.models.config import ModelConfig
from simsd.models.tokenizer import Tokenizer

# A tokenizer that normalises may drop characters; a text this many times as long as tokens can hold is too long anyway.
SLACK = 4


def plain(value: Any, what: str) -> Any:
    """Text as it is, tensors and arrays as lists. Raises PromptError for what is neither text nor a sequence."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise PromptError(f"a {what} is {type(value).__name__}; it must be text or a list")
    return value


def token_ids(text: Any, what: str, tokenizer: Tokenizer, config: ModelConfig, *, special: bool = True) -> list[int]:
    """The ids of one text, or of ids, checked; it may be empty. special: add the tokenizer's own special tokens.

    Raises: PromptError where it holds MASK, or ids that are not in the vocabulary; `what` is its name there.
    """
    text = plain(text, what)
    ids = tokenizer.encode(text, add_special_tokens=special) if isinstance(text, str) else list(text)
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < config.vocab_size:
            raise PromptError(f"token id {token!r} is not in the vocabulary 0..{config.vocab_size - 1}")
    if config.mask_token_id in ids:
        raise PromptError(f"the {what} holds the MASK token (id {config.mask_token_id}); remove it")
    return ids


def prompt_ids(prompt: Any, tokenizer: Tokenizer, config: ModelConfig, max_model_len: int) -> list[int]:
    """The ids of one prompt.

    Raises: PromptError where it is empty, too long, holds MASK, or ids that are not in the vocabulary.
    """
    if isinstance(prompt, str) and len(prompt) > SLACK * max_model_len * tokenizer.longest_token:
        raise PromptError(  # tokenizing it would take minutes and gigabytes to say the same
            f"the prompt has {len(prompt)} characters, more than the {max_model_len} tokens that prompt and answer "
            "together may have can hold; shorten it"
        )
    ids = token_ids(prompt, "prompt", tokenizer, config)
    if not ids:
        raise PromptError("the prompt is empty; give at least one token")
    if len(ids) >= max_model_len:
        raise LongPromptError(
            f"the prompt has {len(ids)} tokens, but prompt and answer together may have {max_model_len}",
            "shorten it, or raise max_model_len where the model allows it",
        )
    return ids
