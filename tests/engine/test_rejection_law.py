"""`exact-draft-order` draws every token from the target's own law in the draft's order (method section 5).

A toy target and a toy draft model of six tokens, whose logits are hashes of all that they see, decode two blocks of two
tokens 40,000 times. The law of a whole text is a product of conditionals that a few forwards give exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from simsd.core import sampling
from simsd.core.draft import BlockState, Draft, limit
from simsd.core.layout import block_causal
from simsd.core.prefix import Known
from simsd.core.sampling import Sampler
from simsd.core.schedule import STRATEGIES, Schedule, quotas
from simsd.drafters.base import Drafter, DraftRequest, NoMemory, propose_with
from simsd.drafters.model import ModelDrafter
from simsd.engine.batch import Round, Rules
from simsd.engine.options import DecodingOptions
from simsd.engine.runner import Runner
from simsd.engine.verify import judge, plan
from tests.hash_model import HashModel

SAMPLES = 40_000
TOKENS, MASK = 6, 6
SIZE = 2
TARGET_SEED, DRAFT_SEED = 4, 9


def toy_model(seed: int, sharpness: float = 0.8) -> HashModel:
    return HashModel(TOKENS + 1, layers=1, seed=seed, sharpness=sharpness, certain=0.0)


def toy(seed: int, sharpness: float = 0.8) -> Runner:
    return Runner(toy_model(seed, sharpness), MASK, SIZE, 1000)


def sampler_of(temperature: float, top_k: int, top_p: float, count: int) -> Sampler:
    return Sampler.of([temperature] * count, [top_k] * count, [top_p] * count, range(count))


@dataclass
class View:
    """A sequence as the drafter sees it: nothing before the block."""

    text_ids: list[int] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=lambda: {"draft_stored": 0})
    block: list[int] = field(default_factory=list)
    taken: int = 0


@dataclass(frozen=True)
class Samples:
    """What the first block became, and what the first round put into the second one.

    tokens: [SAMPLES, 2] first blocks; first: [SAMPLES] the place that the first draft put in its first step.
    ahead:  [M, 4] the window after the first round, where that finished the first block and went on into the second.
    ahead_place: [M] the place in the second block that was put first.
    """

    tokens: Tensor
    first: Tensor
    rounds: int
    ahead: Tensor
    ahead_place: Tensor


def sample(
    drafter: Drafter,
    steps: int = SIZE,
    strategy: str = "low_confidence_static",
    gamma: int = 4,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> Samples:
    """Decodes the first block of all samples side by side, round by round, as the engine does."""
    options = DecodingOptions(method="exact-draft-order", block_length=SIZE).resolve(True)
    target = toy(TARGET_SEED)
    schedule = Schedule(
        strategy=torch.full((SAMPLES,), STRATEGIES.index(strategy)),
        quota=torch.tensor(quotas(SIZE, steps)).expand(SAMPLES, -1),
        doubt=torch.zeros(SAMPLES),
        entropy=torch.zeros(SAMPLES),
        present=frozenset({strategy}),
    )
    everyone = sampler_of(temperature, top_k, top_p, SAMPLES)
    tokens = torch.full((SAMPLES, SIZE), MASK)
    taken = torch.zeros(SAMPLES, dtype=torch.long)
    first = ahead = ahead_place = tokens
    rounds = 0
    while len(open_rows := (tokens == MASK).any(1).nonzero().squeeze(1)):
        count = len(open_rows)
        mine = replace(
            everyone, **{n: getattr(everyone, n)[open_rows] for n in ("temperature", "top_k", "top_p", "seed")}
        )
        rules = Rules(
            mine,
            replace(schedule, **{n: getattr(schedule, n)[:count] for n in ("strategy", "quota", "doubt", "entropy")}),
            timed=True,
            logprobs=False,
        )
        state = BlockState(tokens[open_rows], torch.zeros(count, dtype=torch.long), taken[open_rows], MASK)
        salt = torch.full((count,), rounds)
        views = [View()] * count  # all have the same, empty, past
        wanted = DraftRequest(state, -(-gamma // SIZE), mine, rules.schedule, False, salt, views)
        draft = limit(drafter.propose(wanted), gamma, whole_steps=False)
        nothing = torch.zeros(count, 0, SIZE, dtype=torch.long)
        stored = Known([0] * count, [0] * count)
        now = Round(state, nothing, torch.zeros(count, dtype=torch.long), salt, stored, SIZE)
        work = plan(options, now, draft, rules)
        outcome = judge(options, now, work, target.logits(work.layout, stored), rules).outcome
        if rounds == 0:
            first = (draft.step[:, 0] == 1).long().argmax(-1)
            went_on = (outcome.taken[:, -1] == 0).any(-1) & (outcome.tokens.shape[1] == 2)
            ahead = outcome.tokens[went_on].flatten(1)
            ahead_place = (outcome.taken[went_on, -1] == 0).long().argmax(-1)
        tokens[open_rows] = outcome.tokens[:, 0]
        taken[open_rows] = torch.maximum(taken[open_rows], outcome.taken[:, 0].amax(-1) + 1)
        rounds += 1
    return Samples(tokens, first, rounds, ahead, ahead_place)


def law_in(states: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """[S, 2, 7] the target's law at each place of the last block of each text [S, T]."""
    logits = torch.stack([toy_model(TARGET_SEED).plain_logits(s.tolist(), SIZE, MASK)[-SIZE:] for s in states])
    return sampling.distribution(logits, sampler_of(temperature, top_k, top_p, len(states)))


def joint(first: int, together: bool, **laws: Any) -> Tensor:
    """[6, 6] the probability of each first block if its place `first` is put before the other (or with it)."""
    alone = torch.full((TOKENS, SIZE), MASK)
    one = law_in(alone[:1], **laws)[0, first, :TOKENS]
    if together:
        other = law_in(alone[:1], **laws)[0, 1 - first, :TOKENS].expand(TOKENS, -1)
    else:
        alone[:, first] = torch.arange(TOKENS)
        other = law_in(alone, **laws)[:, 1 - first, :TOKENS]
    table = one[:, None] * other
    return table if first == 0 else table.T


def p_value(samples: Samples, together: bool = False, **given: Any) -> float:
    """Of the chi-square test of the first block's law given the order in which it was drafted."""
    laws = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} | given
    tables = []
    for first in range(SIZE):
        mine = samples.tokens[samples.first == first]
        expected = joint(first, together, **laws).flatten() * len(mine)
        tables.append((torch.bincount(mine[:, 0] * TOKENS + mine[:, 1], minlength=TOKENS**2), expected))
    return chi_square(tables)


def p_value_ahead(samples: Samples) -> float:
    """The same of the first token of the second block, given the first block and the place."""
    tables = []
    for block in samples.ahead[:, :SIZE].unique(dim=0):
        text = torch.cat((block, torch.full((SIZE,), MASK)))[None]
        law = law_in(text, temperature=1.0, top_k=0, top_p=1.0)[0, :, :TOKENS]
        for place in range(SIZE):
            mine = (samples.ahead[:, :SIZE] == block).all(-1) & (samples.ahead_place == place)
            found = torch.bincount(samples.ahead[mine, SIZE + place], minlength=TOKENS)
            tables.append((found, law[place] * len(samples.ahead[mine])))
    return chi_square(tables)


def chi_square(tables: Sequence[tuple[Tensor, Tensor]]) -> float:
    """The p-value of independent tables of (counts, expected counts) together."""
    statistic, freedom = 0.0, 0
    for counts, expected in tables:
        assert counts[expected == 0].sum() == 0, "a token that top-k or top-p forbids"
        rare = expected < 5  # the test needs cells that are met; rare ones are taken together
        found = torch.cat((counts[~rare], counts[rare].sum()[None])).double()
        expected = torch.cat((expected[~rare], expected[rare].sum()[None])).double()
        kept = expected > 0
        if kept.sum() > 1:
            statistic += float(((found - expected)[kept] ** 2 / expected[kept]).sum())
            freedom += int(kept.sum()) - 1
    assert freedom > 0
    return float(chi2.sf(statistic, freedom))


def bad_model(looks: int = SIZE) -> Drafter:
    """A draft model that has nothing in common with the target."""
    return ModelDrafter(toy(DRAFT_SEED), SIZE, looks)


class Wrong(NoMemory):
    """The same drafter with its proposals told wrong."""

    def __init__(self, inner: Drafter, spoil: Any) -> None:
        self.inner, self.spoil = inner, spoil

    def propose(self, request: DraftRequest) -> Draft:
        draft = self.inner.propose(request)
        return replace(draft, proposal=None if draft.proposal is None else self.spoil(draft.proposal))


class GreedyDrafter(NoMemory):
    """The inner drafter's best guesses, as point masses."""

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner

    def propose(self, request: DraftRequest) -> Draft:
        return self.inner.propose(replace(request, sampler=replace(request.sampler, random=False)))


class ByDraw(NoMemory):
    """Draws everywhere and puts the most confident draw first: the place depends on the token (method section 5)."""

    def propose(self, request: DraftRequest) -> Draft:
        runner = toy(DRAFT_SEED)
        batch = len(request.sequences)

        def logits_of(_: int, tokens: Tensor, before: Tensor) -> Tensor:
            text = torch.cat((before.flatten(1), tokens), 1)
            layout = block_causal(text, torch.zeros(batch, dtype=torch.long), SIZE)
            rows = torch.arange(text.shape[1] - SIZE, text.shape[1]).expand(batch, -1)
            return runner.logits(replace(layout, judge=rows), Known([0] * batch, [0] * batch))

        fresh = replace(request.sampler, seed=request.sampler.seed + 7_000_000)  # not the target's own noise
        drafted = propose_with(replace(request, by_draw=True, sampler=fresh), logits_of, SIZE)
        lawful = propose_with(request, logits_of, SIZE)
        return replace(drafted, proposal=lawful.proposal)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 2.0},
    "top-k": {"top_k": 3},
    "top-p": {"top_p": 0.7},
    "all": {"temperature": 1.4, "top_k": 4, "top_p": 0.8},
}
PASSES, FAILS = 1e-3, 1e-12


@pytest.mark.parametrize("name", CASES)
def test_a_bad_draft_model_leaves_the_law(name):
    samples = sample(bad_model(), **CASES[name])
    assert samples.rounds > 1
    assert p_value(samples, **CASES[name]) > PASSES


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_every_window_leaves_the_law(gamma):
    assert p_value(sample(bad_model(), gamma=gamma)) > PASSES


@pytest.mark.parametrize("strategy", ["sequential", "random", "entropy_bounded"])
def test_every_strategy_leaves_the_law(strategy):
    assert p_value(sample(bad_model(), strategy=strategy)) > PASSES


def test_one_look_for_both_tokens_leaves_the_law():
    assert p_value(sample(bad_model(looks=1))) > PASSES


def test_tokens_of_one_step_are_independent():
    samples = sample(bad_model(), steps=1)
    assert p_value(samples, together=True) > PASSES
    assert p_value(samples, together=False) < FAILS


def test_a_perfect_draft_model_leaves_the_law_and_is_never_rejected():
    samples = sample(ModelDrafter(toy(TARGET_SEED), SIZE, SIZE))
    assert samples.rounds == 1
    assert p_value(samples) > PASSES


@pytest.mark.parametrize("gamma", [3, 4])
def test_the_law_goes_on_into_the_next_block(gamma):
    samples = sample(ModelDrafter(toy(TARGET_SEED, sharpness=1.6), SIZE, SIZE), gamma=gamma)
    assert 5_000 < len(samples.ahead) < 35_000  # the draft is good, not perfect
    assert p_value(samples) > PASSES
    assert p_value_ahead(samples) > PASSES


def test_point_masses_leave_the_law_whatever_they_were_drawn_from():
    assert p_value(sample(GreedyDrafter(bad_model()))) > PASSES
    assert p_value(sample(Wrong(bad_model(), lambda _: None))) > PASSES


@pytest.mark.parametrize(
    "spoil",
    [lambda q: q**2 / (q**2).sum(-1, keepdim=True), lambda q: q.flip(2)],
    ids=["too sharp", "of the other place"],
)
def test_a_wrong_proposal_is_found_out(spoil):
    assert p_value(sample(Wrong(bad_model(), spoil))) < FAILS


def test_choosing_places_by_the_drawn_token_is_found_out():
    samples = sample(ByDraw())
    assert 0 < samples.first.sum() < SAMPLES  # both orders came up
    assert p_value(samples) < FAILS


def test_another_target_is_found_out():
    samples = sample(bad_model())
    assert p_value(samples, temperature=0.9) < FAILS
