"""Streaming and stop strings: the pieces make up the completion, and nothing of a stop string is ever shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simsd import LLM, Completion, Piece, SamplingParams
from tests.scripted import scripted
from tests.tiny import write_checkpoint

PROMPT = "ask: "


def whole(pieces: list[Piece]) -> Completion:
    """The completion at the end, which all pieces together must be."""
    last = pieces[-1].completion
    assert last is not None
    assert all(piece.completion is None for piece in pieces[:-1])
    assert "".join(piece.text for piece in pieces) == last.text
    assert [token for piece in pieces for token in piece.token_ids] == last.token_ids
    return last


def alike(one: Completion, other: Completion) -> bool:
    return (one.text, one.token_ids, one.finish_reason) == (other.text, other.token_ids, other.finish_reason)


@pytest.mark.parametrize("method", ["none", "exact"])
@pytest.mark.parametrize("size", [1, 4, 8])
@pytest.mark.parametrize("answer", ["plain words", "größer: 東京 🎉 é", "🎉🎉🎉", " ", "a\n\nb\n"])
def test_pieces_are_text_as_it_grows_and_make_up_the_completion(answer, size, method):
    llm = scripted(PROMPT, answer, block_length=size, method=method, drafter="self")
    pieces = list(llm.stream(PROMPT))
    assert "\ufffd" not in "".join(piece.text for piece in pieces)
    found = whole(pieces)
    assert (found.text, found.finish_reason) == (answer, "stop")
    assert alike(found, llm.generate(PROMPT)[0])
    assert size == 8 or len(answer) < 5 or len(pieces) > 1


STOPS = [
    ("one two three", "two", "one "),
    ("one two three", "one", ""),
    ("one two three", "three", "one two "),
    ("one two three", "four", "one two three"),
    ("aaaaaaaab", "aab", "aaaaaa"),
    ("one\n\ntwo", "\n\n", "one"),
    ("é東|x", "|", "é東"),
    ("🎉🎉END", "END", "🎉🎉"),
    ("x🎉🎉y", "🎉y", "x🎉"),
    ("ab", "b", "a"),
]


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize(("answer", "stop", "text"), STOPS, ids=[f"{a} / {s}" for a, s, _ in STOPS])
def test_a_stop_string_ends_the_text_and_no_part_of_it_is_shown(answer, stop, text, size):
    llm = scripted(PROMPT, answer, block_length=size)
    params = SamplingParams(stop=[stop, "never said"])
    found = llm.generate(PROMPT, params)[0]
    assert (found.text, found.finish_reason) == (text, "stop")
    assert llm.tokenizer.decode(found.token_ids) == text
    assert found.stats.tokens == len(found.token_ids) == len(found.steps)
    shown = ""
    pieces = []
    for piece in llm.stream(PROMPT, params):
        shown += piece.text
        assert text.startswith(shown)
        pieces.append(piece)
    assert alike(whole(pieces), found)


def test_a_stop_string_that_begins_inside_a_token_cuts_the_text_there():
    llm = LLM(device="cpu", method="none")
    asked: list[dict[str, Any]] = [{"role": "user", "content": "Count from 28 in steps of 8, 12 numbers."}]
    plain = llm.chat(asked)[0].text
    for stop in ("6, 4", "2, 6", "00,", "108"):
        params = SamplingParams(stop=stop)
        found = llm.chat(asked, params)[0]
        assert found.text == plain[: plain.index(stop)]
        assert whole(list(llm.stream(asked, params))).text == found.text
        assert llm.tokenizer.decode(found.token_ids).startswith(found.text)


def test_the_earliest_of_several_stop_strings_counts():
    llm = scripted(PROMPT, "one two three", block_length=8)
    assert llm.generate(PROMPT, SamplingParams(stop=["three", "wo", "two"]))[0].text == "one "


def test_a_stop_string_beyond_max_tokens_does_not_count():
    llm = scripted(PROMPT, "one two three", block_length=8)
    found = llm.generate(PROMPT, SamplingParams(stop="two", max_tokens=6))[0]
    assert (found.text, found.finish_reason) == ("one tw", "length")


@pytest.fixture
def bytes_llm(tmp_path: Path) -> LLM:
    """A random model: its text is bytes that seldom make characters."""
    folder = write_checkpoint(tmp_path, vocab_size=272, mask_token_id=259)
    return LLM(folder, dtype="float64", device="cpu", max_num_seqs=4)


@pytest.mark.parametrize("seed", range(8))
def test_pieces_of_random_bytes_make_up_the_completion(seed, bytes_llm):
    params = SamplingParams(max_tokens=30, temperature=1.5, seed=seed)
    assert alike(whole(list(bytes_llm.stream("abc", params))), bytes_llm.generate("abc", params)[0])


def test_a_stream_that_is_left_frees_its_place_for_the_others(bytes_llm):
    params = [SamplingParams(max_tokens=24, temperature=1.0, seed=seed) for seed in range(4)]
    expected = [bytes_llm.generate("abc", one)[0] for one in params]
    streams = [bytes_llm.stream("abc", one) for one in params]
    for stream in streams:
        next(stream)
    streams[0].close()  # type: ignore[attr-defined]
    rest = [list(stream)[-1].completion for stream in streams[1:]]
    for found, other in zip(rest, expected[1:], strict=True):
        assert found is not None and alike(found, other)
    assert not bytes_llm._scheduler.busy


def test_a_stream_goes_on_while_others_are_generated(bytes_llm):
    params = SamplingParams(max_tokens=24, temperature=1.0, seed=1)
    expected = bytes_llm.generate("abc", params)[0]
    stream = bytes_llm.stream("abc", params)
    first = next(stream)
    bytes_llm.generate(["other", "texts"], SamplingParams(max_tokens=40))
    assert alike(whole([first, *stream]), expected)


def test_a_stream_refuses_a_bad_prompt_at_once(bytes_llm):
    with pytest.raises(ValueError, match="empty"):
        bytes_llm.stream("")
