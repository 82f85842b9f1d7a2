"""A request under a loop of one's own: what is read while rounds run, and what a cancelled one leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from simsd import LLM, SamplingParams
from simsd.engine.generation import Generation
from simsd.llm import Completion
from tests.tiny import write_checkpoint


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder: Path = write_checkpoint(tmp_path_factory.mktemp("checkpoint"), vocab_size=272, mask_token_id=259)
    return LLM(folder, dtype="float64", device="cpu", max_num_seqs=2, trace=True)


def params(seed: int = 0, **more: object) -> SamplingParams:
    return SamplingParams(max_tokens=24, temperature=1.0, seed=seed, ignore_eos=True, **more)  # type: ignore[arg-type]


def finish(llm: LLM, generation: Generation) -> Completion:
    while True:
        llm.step()
        piece = generation.read()
        if piece is not None and piece.completion is not None:
            return piece.completion


def test_nothing_is_decoded_before_the_start(llm: LLM) -> None:
    generation = llm.open("abc", params())
    llm.step()
    assert generation.read() is None
    assert generation.sequence.stats.rounds == 0
    generation.start()
    assert finish(llm, generation).token_ids == llm.generate("abc", params())[0].token_ids


def test_pieces_carry_the_log_probabilities_of_their_tokens(llm: LLM) -> None:
    pieces = list(llm.stream("abc", params(logprobs=True)))
    done = pieces[-1].completion
    assert done is not None
    assert done.logprobs is not None
    assert [value for piece in pieces for value in piece.logprobs or []] == done.logprobs
    assert all(value < 0 for value in done.logprobs)
    assert all(piece.logprobs is None for piece in llm.stream("abc", params()))


def test_rounds_are_given_out_once(llm: LLM) -> None:
    expected = llm.generate("abc", params())[0].trace
    generation = llm.open("abc", params())
    generation.start()
    seen = []
    while not generation.ended:
        llm.step()
        seen += generation.rounds()
        assert generation.rounds() == []
    assert seen == expected
    assert generation.completion().trace == []


def test_a_cancelled_one_frees_its_place_and_leaves_the_others_alone(llm: LLM) -> None:
    alone = [llm.generate("abc", params(seed))[0].token_ids for seed in range(3)]
    generations = [llm.open("abc", params(seed)) for seed in range(3)]
    for generation in generations:  # two places: the third waits
        generation.start()
    llm.step()
    generations[0].cancel()
    assert finish(llm, generations[2]).token_ids == alone[2]
    assert finish(llm, generations[1]).token_ids == alone[1]
    assert not generations[0].ended
    generations[1].cancel()  # has ended: nothing to do
