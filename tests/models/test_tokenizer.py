"""Text to ids and back, chat prompts, and text that grows a token at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from simsd.errors import ModelError, PromptError
from simsd.models.tokenizer import Tokenizer
from tests.models.checkpoints import MASK_ID, TEMPLATE, byte_tokenizer, random_checkpoint, write_json

BYTES = Tokenizer(byte_tokenizer(), MASK_ID, chat_template=TEMPLATE, name="bytes")
MESSAGES = [{"role": "user", "content": "Hi"}]
PROMPT = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@given(st.text())
def test_decoding_undoes_encoding(text: str):
    assert BYTES.decode(BYTES.encode(text), skip_special_tokens=False) == text


def test_special_tokens_are_ids_in_and_nothing_out():
    ids = BYTES.encode("a<|im_end|>b")
    assert 258 in ids and len(ids) == 3
    assert BYTES.decode(ids) == "ab"
    assert BYTES.token(258) == "<|im_end|>"


@given(st.lists(st.lists(st.integers(0, 259), max_size=6), max_size=12))
def test_pieces_concatenate_to_the_whole_for_any_bytes(batches: list[list[int]]):
    stream = BYTES.incremental()
    pieces = [stream.push(ids) for ids in batches]
    whole = BYTES.decode([i for ids in batches for i in ids])
    assert "".join(pieces) + stream.finish() == whole


@given(st.text())
def test_no_piece_ends_inside_a_character(text: str):
    stream = BYTES.incremental()
    pieces = [stream.push([i]) for i in BYTES.encode(text.replace("\ufffd", ""))]
    assert not any("\ufffd" in piece for piece in pieces)
    assert stream.finish() == ""


def test_an_unfinished_character_comes_out_at_the_end():
    stream = BYTES.incremental()
    first, *_ = BYTES.encode("é")
    assert stream.push([first]) == ""
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def test_pieces_keep_spaces_that_depend_on_the_token_before():
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"▁a": 0, "▁b": 1}, []))
    backend.decoder = tokenizers.decoders.Metaspace()  # pyright: ignore[reportAttributeAccessIssue]
    stream = Tokenizer(backend).incremental()
    assert [stream.push([i]) for i in (0, 1, 0)] == ["a", " b", " a"]


def test_chat_template_of_tokenizer_config(tmp_path: Path):
    tokenizer = Tokenizer.from_folder(random_checkpoint(tmp_path), MASK_ID)
    ids = tokenizer.apply_chat_template(MESSAGES)
    assert tokenizer.decode(ids, skip_special_tokens=False) == PROMPT


def test_chat_template_files_go_first(tmp_path: Path):
    folder = random_checkpoint(tmp_path)
    write_json(folder / "chat_template.json", {"chat_template": "json"})
    assert Tokenizer.from_folder(folder).apply_chat_template(MESSAGES) == BYTES.encode("json")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}, {{ eos_token }}{{ mood }}")
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.apply_chat_template(MESSAGES, mood="!") == BYTES.encode("Hi, <|im_end|>!")


def test_named_templates_use_the_default_one(tmp_path: Path):
    folder = random_checkpoint(tmp_path)
    templates = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    write_json(folder / "tokenizer_config.json", {"chat_template": templates})
    assert Tokenizer.from_folder(folder).apply_chat_template(MESSAGES) == BYTES.encode("d")


def test_template_errors_are_the_users_and_say_why():
    with pytest.raises(ModelError, match="none has no chat template"):
        Tokenizer(byte_tokenizer(), name="none").apply_chat_template(MESSAGES)
    strict = Tokenizer(byte_tokenizer(), chat_template="{{ raise_exception('roles must alternate') }}", name="strict")
    with pytest.raises(PromptError, match=r"strict .*roles must alternate"):
        strict.apply_chat_template(MESSAGES)
    with pytest.raises(PromptError, match="empty"):
        BYTES.apply_chat_template([])


def test_a_conversation_may_end_in_an_answer_that_goes_on(tmp_path: Path):
    tokenizer = Tokenizer.from_folder(random_checkpoint(tmp_path), MASK_ID)
    assert tokenizer.render_chat(MESSAGES) == PROMPT
    begun = tokenizer.render_chat([*MESSAGES, {"role": "assistant", "content": "Well, 3"}], go_on=True)
    assert begun == PROMPT + "Well, 3"


def test_folder_without_tokenizer_or_with_a_broken_one(tmp_path: Path):
    folder = random_checkpoint(tmp_path)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be read"):
        Tokenizer.from_folder(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(folder)


def test_tokens_known_only_to_tokenizer_config_are_added_at_their_id(tmp_path: Path):
    folder = random_checkpoint(tmp_path)
    added = {"260": {"content": "<|extra|>", "special": True}, "262": {"content": "<|gap|>", "special": True}}
    write_json(folder / "tokenizer_config.json", {"added_tokens_decoder": added})
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode("<|extra|>") == [260]
    assert len(tokenizer.encode("<|gap|>")) > 1  # its id is not the next free one: better unknown than wrong


def test_text_vocabulary_of_two_files(tmp_path: Path):
    backend = json.loads(byte_tokenizer().to_str())
    write_json(tmp_path / "vocab.json", backend["model"]["vocab"])
    (tmp_path / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    decoder = {str(i): {"content": token} for i, token in enumerate(("<|endoftext|>", "<|im_start|>"), 256)}
    write_json(tmp_path / "tokenizer_config.json", {"added_tokens_decoder": decoder})
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("Zoë <|im_start|>") == [*BYTES.encode("Zoë "), 257]


def test_fingerprint_ignores_only_the_name_of_mask():
    def renamed(old: str, new: str) -> Tokenizer:
        return Tokenizer(tokenizers.Tokenizer.from_str(byte_tokenizer().to_str().replace(old, new)), MASK_ID)

    assert renamed("<|MASK|>", "[MASK]").fingerprint == BYTES.fingerprint
    assert renamed("<|im_end|>", "<|eot|>").fingerprint != BYTES.fingerprint


def test_agrees_with_transformers_on_the_embedded_tokenizer(tmp_path: Path):
    folder = random_checkpoint(tmp_path)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    ours = Tokenizer.from_folder(folder)
    for text in ("", "Hello, wörld", "  two  spaces\n", PROMPT):
        assert ours.encode(text) == theirs(text)["input_ids"]
    assert ours.decode(ours.encode(PROMPT)) == theirs.decode(ours.encode(PROMPT), skip_special_tokens=True)
    text = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert ours.apply_chat_template(MESSAGES) == theirs(text, add_special_tokens=False)["input_ids"]
