"""The checkpoint's tokenizer: text to ids and back, chat prompts, and text as it grows.

Encoding and decoding use the `tokenizers` library directly, which starts at once; transformers is imported only to
render a chat template, whose code comes from the checkpoint and must run in its sandbox.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from simsd.errors import ModelError, PromptError
from simsd.models.values import read_json

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token")


class Tokenizer:
    """Text <-> token ids of one checkpoint.

    mask_token_id: the MASK id; its string differs between SDAR's tokenizer files, so the id is what counts.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        mask_token_id: int | None = None,
        *,
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] = {},
        name: str = "",
    ) -> None:
        self.backend = backend
        self.mask_token_id = mask_token_id
        self.chat_template = chat_template
        self.special_tokens = dict(special_tokens)
        self.name = name

    @classmethod
    def from_folder(cls, folder: Path, mask_token_id: int | None = None) -> Tokenizer:
        """Reads `tokenizer.json` (or `vocab.json` and `merges.txt`), `tokenizer_config.json` and the chat template.

        Raises:
            ModelError: there is no tokenizer in the folder, or it cannot be read.
        """
        path = folder / "tokenizer_config.json"
        settings = read_json(path) if path.is_file() else {}
        backend = _read_backend(folder)
        try:
            _add_missing_tokens(backend, settings.get("added_tokens_decoder") or {})
            special = {key: _content(settings[key]) for key in _SPECIAL if settings.get(key)}
            template = _read_template(folder, settings)
            if template is not None and not isinstance(template, str):
                raise TypeError(f"the chat template is {type(template).__name__}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ModelError(
                f"tokenizer_config.json or the chat template in {folder} is damaged ({reason})."
            ) from error
        return cls(backend, mask_token_id, chat_template=template, special_tokens=special, name=folder.name)

    @classmethod
    def from_transformers(cls, tokenizer: Any, mask_token_id: int | None = None) -> Tokenizer:
        """A tokenizer that was loaded with transformers.

        Raises:
            ModelError: it is not one of the fast tokenizers.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, tokenizers.Tokenizer):
            raise ModelError(f"{type(tokenizer).__name__} is not a fast tokenizer of transformers; load it as one.")
        special = {key: str(getattr(tokenizer, key)) for key in _SPECIAL if getattr(tokenizer, key, None)}
        template = getattr(tokenizer, "chat_template", None)
        template = template.get("default") if isinstance(template, dict) else template
        name = str(getattr(tokenizer, "name_or_path", ""))
        return cls(backend, mask_token_id, chat_template=template, special_tokens=special, name=name)

    @property
    def vocab_size(self) -> int:
        """Entries of the tokenizer, added tokens included; the model's vocabulary may be padded beyond."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest entry; a token never stands for more of its text than that, by and large."""
        return max(map(len, self.backend.get_vocab(with_added_tokens=True)), default=1)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text; special tokens written out in it become their ids.

        Raises:
            PromptError: the text holds lone surrogates, which no encoding of text has.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise PromptError(f"the text is not valid Unicode at character {error.start}; remove it.") from error
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ids. Bytes that are not UTF-8 become U+FFFD."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str:
        """One id as readable text, special tokens by their name, for traces and tables."""
        return self.decode([token_id], skip_special_tokens=False)

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        """Ids of a conversation, ready for the assistant's answer.

        Args:
            messages: `{"role": ..., "content": ...}` each.
            variables: passed to the template (`enable_thinking=False`, for instance).

        Raises:
            ModelError: the checkpoint has no chat template.
            PromptError: the template refuses these messages.
        """
        return self.encode(self.render_chat(messages, **variables), add_special_tokens=False)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], *, go_on: bool = False, **variables: Any) -> str:
        """The text of a conversation, special tokens written out, ready for the assistant's answer; with `go_on` the
        last message is the answer's beginning, and stays open. Arguments and errors as in `apply_chat_template`.
        """
        if not messages:
            raise PromptError("the conversation is empty; give at least one message.")
        renderer = self._renderer
        variables |= {"add_generation_prompt": not go_on, "continue_final_message": go_on}
        try:
            return str(renderer.apply_chat_template([dict(one) for one in messages], tokenize=False, **variables))
        except Exception as error:  # the template is foreign code: it may raise anything
            reason = str(error) or type(error).__name__
            raise PromptError(f"the chat template of {self.name} does not take these messages: {reason}.") from error

    @functools.cached_property
    def _renderer(self) -> Any:
        if self.chat_template is None:
            raise ModelError(f"{self.name} has no chat template; use generate with the whole prompt as text.")
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast(
            tokenizer_object=self.backend, chat_template=self.chat_template, **self.special_tokens
        )

    @functools.cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits over all (id, token) pairs but MASK's: equal means that ids stand for the same tokens."""
        pairs = sorted((index, token) for token, index in self.backend.get_vocab(with_added_tokens=True).items())
        text = "\n".join(f"{index} {token}" for index, token in pairs if index != self.mask_token_id)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def incremental(self) -> IncrementalText:
        """A decoder for text that arrives a few tokens at a time."""
        return IncrementalText(self)


class IdTokenizer(Tokenizer):
    """Of a model that came without a tokenizer: prompts are ids, and text is ids written out."""

    def __init__(self, vocab_size: int, mask_token_id: int | None = None, name: str = "") -> None:
        super().__init__(tokenizers.Tokenizer(tokenizers.models.WordLevel()), mask_token_id, name=name)
        self._size = vocab_size

    @property
    def vocab_size(self) -> int:
        return self._size

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        raise PromptError(f"{self.name} came without a tokenizer; pass token ids, or give tokenizer=.")

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return " ".join(map(str, ids))


class IncrementalText:
    """Decodes a growing list of ids into pieces of text that concatenate to the decoding of the whole list.

    A piece never ends inside a UTF-8 character: bytes wait until the character is complete, or until `finish`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        # Ids from _context on are decoded each time; those before _shown are already text. The overlap is the context
        # that some decoders need (a leading space depends on the token before).
        self._context = self._shown = 0

    def push(self, ids: Sequence[int]) -> str:
        """The text that these further ids complete; may be empty."""
        self._ids += ids
        old, new = self._decode()
        if len(new) <= len(old) or new.endswith("\ufffd"):
            return ""
        self._context, self._shown = self._shown, len(self._ids)
        return new[len(old) :]

    def finish(self) -> str:
        """What is left, an unfinished character as U+FFFD."""
        old, new = self._decode()
        self._context = self._shown = len(self._ids)
        return new[len(old) :]

    def _decode(self) -> tuple[str, str]:
        decode = self._tokenizer.decode
        return decode(self._ids[self._context : self._shown]), decode(self._ids[self._context :])


def _read_backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    try:
        if path.is_file():
            return tokenizers.Tokenizer.from_file(str(path))
        if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            # SDAR's tokenizer is Qwen2's; older folders hold only the two text files.
            import transformers

            # transformers 5 gives the class another name and keeps this one at run time only.
            fast = transformers.Qwen2TokenizerFast  # pyright: ignore[reportAttributeAccessIssue]
            return fast.from_pretrained(str(folder)).backend_tokenizer
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"the tokenizer in {folder} cannot be read: {error}.") from error
    raise ModelError(f"{folder} has no tokenizer.json; the checkpoint folder is incomplete.")


def _add_missing_tokens(backend: tokenizers.Tokenizer, added: Mapping[str, Any]) -> None:
    """Tokens that only tokenizer_config.json knows, among them SDAR's MASK."""
    for index, entry in sorted(added.items(), key=lambda item: int(item[0])):
        content = _content(entry)
        if backend.token_to_id(content) is not None or backend.id_to_token(int(index)) is not None:
            continue
        if backend.get_vocab_size(with_added_tokens=True) == int(index):  # else it would get another id
            special = isinstance(entry, dict) and entry.get("special", False)
            backend.add_tokens([tokenizers.AddedToken(content, special=special, normalized=False)])


def _content(entry: Any) -> str:
    return str(entry["content"]) if isinstance(entry, dict) else str(entry)


def _read_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The chat template: a file of its own goes before tokenizer_config.json, as in transformers."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if (folder / "chat_template.json").is_file():
        template = read_json(folder / "chat_template.json").get("chat_template", template)
    if isinstance(template, list):  # several named ones
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return template
