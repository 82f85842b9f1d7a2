"""Whatever is drafted, rounds keep their promises: random prompts, drafts, windows, schedules and samplers.

The model is a hash of all that each row sees, so a single wrongly visible row, position or cached value shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simsd.core.draft import empty_draft
from simsd.core.schedule import STRATEGIES
from simsd.core.states import KINDS
from simsd.drafters.base import Drafter, DraftRequest, NoMemory
from simsd.drafters.fixed import fixed_draft
from simsd.drafters.lookup import LookupDrafter
from simsd.drafters.model import ModelDrafter
from simsd.drafters.self import SelfDrafter
from simsd.engine.options import DecodingOptions, SamplingParams
from simsd.engine.request import Sequence
from simsd.engine.runner import Runner
from simsd.engine.scheduler import Scheduler
from tests.hash_model import HashModel

VOCAB = 9
MASK = VOCAB - 1
STOP = 3


class NoisyDrafter(NoMemory):
    """The true continuation, spoilt: some tokens replaced, some steps exchanged, some guesses cut short."""

    def __init__(self, seed: int, spoil: float) -> None:
        self.chance = random.Random(seed)
        self.spoil = spoil

    def propose(self, request: DraftRequest):
        return fixed_draft(request, [self._guess(sequence) for sequence in request.sequences])

    def _guess(self, sequence) -> tuple[list[int], list[int]]:
        text, steps = sequence.memory["truth"]
        begin = len(sequence.text_ids)
        tokens = list(text[begin:])
        order = [s if s >= 0 else 0 for s in steps[begin - sequence.memory["first_block"] :]]
        for i in range(len(tokens)):
            if self.chance.random() < self.spoil:
                tokens[i] = self.chance.randrange(VOCAB)  # MASK too: a gap in the guess
            if self.chance.random() < self.spoil:
                j = self.chance.randrange(len(order))
                order[i], order[j] = order[j], order[i]
        if self.chance.random() < self.spoil:
            tokens = tokens[: self.chance.randrange(len(tokens) + 1)]
        return tokens, order[: len(tokens)]


class ProposingDrafter(NoisyDrafter):
    """The same with laws that have nothing to do with what was drawn: nothing but the law of the text may suffer."""

    def propose(self, request: DraftRequest):
        made = super().propose(request)
        torch.manual_seed(self.chance.randrange(2**31))
        law = torch.rand(*made.tokens.shape, VOCAB, dtype=torch.float64).pow(3)
        law[..., MASK] = 0
        object.__setattr__(made, "proposal", law / law.sum(-1, keepdim=True))
        return made


@dataclass(frozen=True)
class Case:
    """One example: a batch of requests, and how to decode them."""

    size: int
    layers: int
    prompts: list[list[int]]
    params: list[SamplingParams]
    model_seed: int


@st.composite
def requests(draw: st.DrawFn, greedy: bool = False, layers: int | None = None) -> Case:
    size, seed = draw(st.integers(1, 5)), draw(st.integers(0, 999))
    count = draw(st.integers(1, 3))
    chance = random.Random(seed)
    prompts, params = [], []
    for _ in range(count):
        length = draw(st.integers(1, 3 * size))
        prompts.append([chance.randrange(VOCAB - 1) for _ in range(length)])
        params.append(
            SamplingParams(
                max_tokens=draw(st.integers(1, 4 * size)),
                temperature=0.0 if greedy else draw(st.sampled_from([0.0, 0.7, 1.0])),
                top_k=draw(st.sampled_from([0, 0, 1, 3])),
                top_p=draw(st.sampled_from([1.0, 1.0, 0.6])),
                seed=draw(st.integers(0, 99)),
                stop_token_ids=[STOP] if draw(st.booleans()) else [],
                remasking_strategy=draw(st.sampled_from(STRATEGIES)),
                denoising_steps=draw(st.integers(1, size)),
                confidence_threshold=draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])),
                eb_threshold=draw(st.sampled_from([0.0, 0.3, 2.0])),
                logprobs=True,
            )
        )
    return Case(size, layers or draw(st.integers(1, 3)), prompts, params, seed)


Watch = Callable[[list[Sequence], Callable[[], object]], None]


def unwatched(running: list[Sequence], step: Callable[[], object]) -> None:
    step()


def decode(
    case: Case,
    drafter: Drafter | None = None,
    truths: list[Sequence] | None = None,
    watch: Watch = unwatched,
    **options,
) -> list[Sequence]:
    """Decodes the whole batch; `watch` runs each round and may look at the sequences before and after it."""
    given = DecodingOptions(**({"method": "exact", "block_length": case.size} | options)).resolve(True)
    model = HashModel(VOCAB, case.layers, case.model_seed, certain=0.6)
    scheduler = Scheduler(given, Runner(model, MASK, case.size, 10_000), drafter, decode=lambda _: "", max_num_seqs=2)
    sequences = [
        Sequence(i, prompt, p.resolve(given, 0), frozenset(p.stop_token_ids), case.size, MASK)
        for i, (prompt, p) in enumerate(zip(case.prompts, case.params, strict=True))
    ]
    for i, sequence in enumerate(sequences):
        if truths is not None:
            sequence.memory |= {"truth": (truths[i].text_ids, truths[i].steps), "first_block": truths[i].first_block}
        scheduler.add(sequence)
    while scheduler.busy:
        watch(sequences, scheduler.step)
    return sequences


def ordinary(case: Case) -> list[Sequence]:
    return decode(case, method="none")


def known(sequence: Sequence) -> list[int]:
    """All that is decided, MASK elsewhere."""
    return sequence.text_ids + ([] if sequence.finish_reason else sequence.block)


def keeps_its_promises(sequences: list[Sequence], step: Callable[[], object]) -> None:
    """One round, and what must hold of every round."""
    before = [(known(s), s.stats.committed_tokens, s.stats.rounds, s.finish_reason) for s in sequences]
    step()
    for sequence, (text, committed, rounds, ended) in zip(sequences, before, strict=True):
        if ended or sequence.stats.rounds == rounds:
            continue
        now, stats = known(sequence), sequence.stats
        assert stats.rounds == rounds + 1
        assert all(new == old for old, new in zip(text, now, strict=False) if old != MASK), "a known token changed"
        assert MASK not in sequence.text_ids, "a finished block holds a MASK"
        assert stats.committed_tokens > committed, "a round committed nothing"
        decided = sum(token != MASK for token in now) - len(sequence.prompt_ids)
        assert stats.committed_tokens == decided, "committed tokens are not those of the text"
        assert len(sequence.text_ids) % sequence.block_length == 0
        assert len(sequence.steps) == len(sequence.text_ids) - sequence.first_block
        assert sequence.finish_reason or sequence.stored <= len(sequence.text_ids)
        assert stats.accepted_tokens <= stats.drafted_tokens
        assert sequence.finish_reason or stats.accepted_tokens <= stats.committed_tokens
        assert sum(stats.acceptance_histogram) == stats.rounds
        assert sum(n * times for n, times in enumerate(stats.acceptance_histogram)) == stats.accepted_tokens


def blocks_of(sequence: Sequence):
    """(text before, tokens, reveal steps) of each decoded block."""
    size = sequence.block_length
    for at in range(sequence.first_block, len(sequence.text_ids), size):
        begin = at - sequence.first_block
        yield sequence.text_ids[:at], sequence.text_ids[at : at + size], sequence.steps[begin : begin + size]


def assert_ended_well(sequence: Sequence) -> None:
    assert sequence.finish_reason in ("stop", "length")
    made = sequence.text_ids[len(sequence.prompt_ids) :]
    assert sequence.token_ids == made[: len(sequence.token_ids)]
    assert STOP not in sequence.token_ids or STOP not in sequence.stop_ids
    if sequence.finish_reason == "length":
        assert len(sequence.token_ids) == sequence.params.max_tokens
    else:
        assert made[len(sequence.token_ids)] in sequence.stop_ids
    for _, _, steps in blocks_of(sequence):
        taken = {s for s in steps if s >= 0}
        assert taken == set(range(len(taken))), "the steps of a block are not counted from 0 on"


def assert_same(found: list[Sequence], expected: list[Sequence]) -> None:
    for mine, other in zip(found, expected, strict=True):
        assert mine.token_ids == other.token_ids
        assert mine.token_steps == other.token_steps
        assert mine.finish_reason == other.finish_reason
        assert mine.token_logprobs == pytest.approx(other.token_logprobs, abs=1e-9)


windows = st.one_of(st.just("auto"), st.integers(1, 14))


@given(requests(), windows, st.sampled_from([None, *KINDS]), st.sampled_from([0.0, 0.1, 0.4, 1.0]), st.integers(0, 99))
def test_exact_decoding_is_ordinary_decoding_whatever_is_drafted(case, gamma, kind, spoil, seed):
    expected = ordinary(case)
    drafter = NoisyDrafter(seed, spoil)
    found = decode(case, drafter, expected, keeps_its_promises, states=kind, num_speculative_tokens=gamma)
    assert_same(found, expected)
    for sequence in found:
        assert_ended_well(sequence)


@given(requests(), windows, st.sampled_from(["model", "other model", "self", "lookup"]), st.data())
def test_exact_decoding_is_ordinary_decoding_with_every_drafter(case, gamma, name, data):
    looks = data.draw(st.integers(1, case.size))
    seed = case.model_seed if name == "model" else case.model_seed + 1
    draft_model = Runner(HashModel(VOCAB, case.layers, seed, certain=0.6), MASK, case.size, 10_000)
    drafter = {"self": SelfDrafter, "lookup": LookupDrafter}.get(
        name, lambda: ModelDrafter(draft_model, case.size, looks)
    )()
    found = decode(case, drafter, watch=keeps_its_promises, num_speculative_tokens=gamma)
    assert_same(found, ordinary(case))


def assert_argmax_in_its_own_order(case: Case, sequence: Sequence) -> None:
    """Each token is the target's best in the state in which it was revealed."""
    model = HashModel(VOCAB, case.layers, case.model_seed, certain=0.6)
    for before, tokens, steps in blocks_of(sequence):
        for step in range(max(steps) + 1):
            state = [t if s < step else MASK for t, s in zip(tokens, steps, strict=True)]
            logits = model.plain_logits(before + state, case.size, MASK)[-case.size :]
            for place, taken in enumerate(steps):
                if taken == step:
                    assert tokens[place] == int(logits[place].argmax())


@given(requests(greedy=True), windows, st.sampled_from([0.0, 0.1, 0.4, 1.0]), st.sampled_from(["match", "rejection"]))
def test_unrolled_draft_order_commits_the_targets_best_token_of_each_state(case, gamma, spoil, acceptance):
    truths = ordinary(case)
    options = {"method": "exact-draft-order", "acceptance": acceptance, "num_speculative_tokens": gamma}
    for sequence in decode(case, NoisyDrafter(1, spoil), truths, keeps_its_promises, **options):
        assert_ended_well(sequence)
        assert_argmax_in_its_own_order(case, sequence)


@given(requests(greedy=True, layers=1), windows, st.sampled_from([0.0, 0.1, 0.4, 1.0]))
def test_the_paired_layout_is_exact_for_one_layer(case, gamma, spoil):
    options = {"method": "simsd", "num_speculative_tokens": gamma}
    for sequence in decode(case, NoisyDrafter(1, spoil), ordinary(case), keeps_its_promises, **options):
        assert_ended_well(sequence)
        assert_argmax_in_its_own_order(case, sequence)


class EmptyDrafter(NoMemory):
    """It guesses nothing over the whole window."""

    def propose(self, request: DraftRequest):
        return empty_draft(request.state, request.blocks)


@given(requests(), windows, st.sampled_from(["exact", "exact-draft-order", "simsd"]))
def test_every_method_is_ordinary_decoding_where_nothing_is_drafted(case, gamma, method):
    found = decode(case, EmptyDrafter(), watch=keeps_its_promises, method=method, num_speculative_tokens=gamma)
    assert_same(found, ordinary(case))
    assert all(s.stats.drafted_tokens == 0 for s in found)


def test_the_paired_layout_leaks_from_two_layers_on():
    case = Case(4, 2, [[1, 2, 4, 5]], [SamplingParams(max_tokens=16, seed=0)], 7)
    found = decode(case, NoisyDrafter(1, 0.0), ordinary(case), method="simsd")
    with pytest.raises(AssertionError):
        assert_argmax_in_its_own_order(case, found[0])


@given(
    requests(),
    windows,
    st.sampled_from(["simsd", "exact-draft-order"]),
    st.booleans(),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.booleans(),
)
def test_sampled_rounds_keep_their_promises_under_any_law(case, gamma, method, copy, spoil, lawless):
    drafter = (ProposingDrafter if lawless else NoisyDrafter)(1, spoil)
    options = {"method": method, "num_speculative_tokens": gamma, "position_copy": copy}
    for sequence in decode(case, drafter, ordinary(case), keeps_its_promises, **options):
        assert_ended_well(sequence)


@given(requests(), windows, st.sampled_from(["simsd", "exact-draft-order"]), st.booleans())
def test_sampled_rounds_keep_their_promises_with_a_draft_model(case, gamma, method, itself):
    model = HashModel(VOCAB, case.layers, case.model_seed + (not itself), certain=0.6)
    drafter = ModelDrafter(Runner(model, MASK, case.size, 10_000), case.size, 1)
    for sequence in decode(case, drafter, watch=keeps_its_promises, method=method, num_speculative_tokens=gamma):
        assert_ended_well(sequence)


@given(requests())
def test_ordinary_decoding_takes_one_forward_a_step_and_none_to_store(case):
    for sequence in decode(case, watch=keeps_its_promises, method="none"):
        steps = sum(max(steps) + 1 for _, _, steps in blocks_of(sequence))
        assert sequence.stats.target_forwards == steps
        assert sequence.stats.drafted_tokens == 0 and sequence.stats.acceptance_rate is None


def test_a_true_draft_is_accepted_as_a_whole_and_saves_forwards():
    case = Case(4, 3, [[1, 2, 4, 5, 6]], [SamplingParams(max_tokens=31, seed=0)], 3)
    expected = ordinary(case)
    found = decode(case, NoisyDrafter(1, 0.0), expected, num_speculative_tokens=8)
    assert_same(found, expected)
    assert found[0].stats.acceptance_rate == 1.0
    assert found[0].stats.target_forwards <= expected[0].stats.target_forwards / 5
