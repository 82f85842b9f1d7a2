"""From logits to a draft with a temporal order, against a plain simulation (method sections 3, 5)."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from simsd.core import sampling
from simsd.core.schedule import STRATEGIES, reveal
from simsd.drafters.base import order_noise, propose_with
from simsd.drafters.self import SelfDrafter
from tests.core.cases import MASK, VOCAB, ids, letters, make_sampler, make_schedule, window
from tests.drafters.support import ask, view


def logits_for(*texts: str, margin: float = 9.0) -> torch.Tensor:
    """[N, B, V]: the letters win; earlier ones in the alphabet by more. MASK is never drawn."""
    found = torch.zeros(len(texts), len(texts[0]), VOCAB)
    for row, text in enumerate(texts):
        for place, token in enumerate(ids(text)):
            found[row, place, token] = margin - 0.2 * token
    found[..., MASK] = -torch.inf
    return found


def random_logits(*shape: int, seed: int = 0) -> torch.Tensor:
    found = torch.randn(*shape, VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2
    found[..., MASK] = -torch.inf
    return found


def test_the_most_confident_guess_is_the_first_step():
    request = ask("....", sequences=[view("")])
    made = propose_with(request, lambda *_: logits_for("dbca"), 1)
    assert window(made.tokens) == ["dbca"]
    assert made.step.tolist() == [[[4, 2, 3, 1]]]
    assert made.proposal is None


def test_known_tokens_are_kept_and_drafted_around():
    request = ask("z..y", sequences=[view("")])
    made = propose_with(request, lambda *_: logits_for("dbca"), 1)
    assert window(made.tokens) == ["zbcy"]
    assert made.step.tolist() == [[[0, 1, 2, 0]]]


def test_later_blocks_are_drafted_from_logits_that_know_the_earlier_ones():
    asked: list[tuple[int, str, list[str]]] = []

    def logits_of(w, tokens, before):
        asked.append((w, letters(tokens[0]), [letters(b) for b in before[0]]))
        return logits_for(["ab", "dc", "ef"][w])

    made = propose_with(ask("a.", sequences=[view("")], window=3), logits_of, 1)
    assert asked == [(0, "a.", []), (1, "..", ["ab"]), (2, "..", ["ab", "dc"])]
    assert window(made.tokens) == ["ab|dc|ef"]
    assert made.step.tolist() == [[[0, 1], [3, 2], [4, 5]]]


@pytest.mark.parametrize(
    ("forwards", "looks"), [(1, ["...."]), (2, ["....", "ab.."]), (4, ["....", "a...", "ab..", "abc."])]
)
def test_several_looks_share_the_steps_of_a_block(forwards, looks):
    asked: list[str] = []

    def logits_of(w, tokens, before):
        asked.append(letters(tokens[0]))
        return logits_for("abcd")

    made = propose_with(ask("....", sequences=[view("")]), logits_of, forwards)
    assert asked == looks
    assert window(made.tokens) == ["abcd"]
    assert made.step.tolist() == [[[1, 2, 3, 4]]]


def test_the_last_look_finishes_the_block_whatever_was_left():
    made = propose_with(ask(".....", sequences=[view("")]), lambda *_: logits_for("abcde"), 2)
    assert made.step.tolist() == [[[1, 2, 3, 4, 5]]]


def test_a_sequence_that_the_source_does_not_know_gets_an_empty_draft():
    request = ask("a.", "a.", sequences=[view("")] * 2, window=1)
    made = propose_with(request, lambda *_: logits_for("xy", "xy"), 1, torch.tensor([True, False]))
    assert window(made.tokens) == ["ay", "a."]
    assert made.step.tolist() == [[[0, 1]], [[0, 1]]]


def simulate(block: list[int], logits: torch.Tensor, sampler, schedule, start: int, taken: int):
    """Ordinary decoding of one block whose logits never change: (tokens, step of each place from 1)."""
    tokens, steps, count = torch.tensor([block]), torch.zeros(len(block), dtype=torch.long), 0
    place = start + torch.arange(len(block))[None]
    while bool((tokens == MASK).any()):
        time = torch.tensor([taken + count])
        key = sampling.noise_key(sampler.seed[:, None], sampling.TARGET, place, time[:, None])
        drawn = sampling.draw(logits[None], sampler, key, entropy=True)
        noise = order_noise(sampler, schedule, place, time)
        shown = reveal(schedule, tokens == MASK, time, drawn.doubt, drawn.entropy, noise)
        tokens = torch.where(shown, drawn.token, tokens)
        count += 1
        steps[shown[0]] = count
    return tokens[0].tolist(), steps.tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("forwards", [1, 2])
def test_drafting_by_draw_is_the_targets_own_decoding_of_these_logits(name, temperature, forwards):
    """With the target's own logits the draft is what the target would do, noise included."""
    sampler = make_sampler(temperature, top_k=5, seed=[3, 4], batch=2)
    rule = make_schedule(name, 6, 4, threshold=0.3, entropy=1.5, batch=2)
    logits = random_logits(2, 6)
    sequences = [view("abcdef" * 2), view("abcdef")]
    request = ask("......", "a..b..", sequences=sequences, sampler=sampler, schedule=rule, taken=[0, 1])
    made = propose_with(request, lambda *_: logits, forwards)
    for row, block in enumerate(("......", "a..b..")):
        own = make_sampler(temperature, top_k=5, seed=[3, 4][row])
        rule = make_schedule(name, 6, 4, threshold=0.3, entropy=1.5)
        tokens, steps = simulate(ids(block), logits[row], own, rule, [12, 6][row], row)
        assert made.tokens[row, 0].tolist() == tokens
        assert made.step[row, 0].tolist() == steps


def test_proposals_are_the_filtered_distributions_of_the_logits_that_drew_each_token():
    sampler = make_sampler(0.8, top_k=4, seed=1)
    looks = [random_logits(1, 4, seed=k) for k in range(2)]
    request = ask("....", sequences=[view("")], by_draw=False, sampler=sampler)
    given = iter(looks)
    made = propose_with(request, lambda *_: next(given), 2)
    assert made.proposal is not None
    for place in range(4):
        look = 0 if made.step[0, 0, place] <= 2 else 1
        law = sampling.distribution(looks[look], sampler)[0, place]
        assert torch.equal(made.proposal[0, 0, place], law)
        assert law[made.tokens[0, 0, place]] > 0


@pytest.mark.parametrize("name", STRATEGIES)
def test_drafting_for_rejection_chooses_positions_before_it_draws(name):
    logits = random_logits(1, 4, seed=5)
    rule = make_schedule(name, 4, entropy=1.0)
    sampler = make_sampler(1.0, seed=9)
    drafts = [
        propose_with(
            ask("....", sequences=[view("")], by_draw=False, sampler=sampler, schedule=rule, salt=salt),
            lambda *_: logits,
            1,
        )
        for salt in range(12)
    ]
    assert len({tuple(d.tokens.flatten().tolist()) for d in drafts}) > 6  # another round, other tokens
    assert len({tuple(d.step.flatten().tolist()) for d in drafts}) == 1  # and yet the same order


def test_tokens_drafted_for_rejection_follow_the_proposal():
    """Each drafted token, first or last in order, is a true draw from q: what acceptance divides by."""
    count = 6000
    logits = random_logits(1, 3, seed=2)
    logits[..., 6:] = -torch.inf
    sampler = make_sampler(1.0, top_k=4, seed=list(range(count)), batch=count)
    rule = make_schedule(block_length=3, batch=count)
    request = ask(*["..."] * count, sequences=[view("")] * count, by_draw=False, sampler=sampler, schedule=rule, salt=3)
    made = propose_with(request, lambda *_: logits.expand(count, -1, -1), 1)
    law = sampling.distribution(logits, make_sampler(1.0, top_k=4))[0]
    for place in range(3):
        kept = law[place] > 0
        counts = torch.bincount(made.tokens[:, 0, place], minlength=VOCAB)
        assert int(counts[~kept].sum()) == 0
        assert stats.chisquare(counts[kept].numpy(), (law[place, kept] * count).numpy()).pvalue > 1e-3


def test_greedy_sequences_of_a_mixed_batch_propose_their_best_tokens_with_certainty():
    logits = random_logits(2, 4, seed=4)
    sampler = make_sampler([0.0, 1.0], batch=2)
    made = propose_with(
        ask("....", "....", sequences=[view("")] * 2, by_draw=False, sampler=sampler), lambda *_: logits, 1
    )
    assert made.proposal is not None
    assert torch.equal(made.tokens[0, 0], logits[0].argmax(-1))
    assert torch.equal(
        made.proposal[0, 0].gather(-1, made.tokens[0, 0, :, None]), torch.ones(4, 1, dtype=torch.float64)
    )


def test_a_greedy_batch_has_no_proposal():
    made = propose_with(ask("....", sequences=[view("")], by_draw=False), lambda *_: logits_for("dbca"), 1)
    assert made.proposal is None
    assert made.step.tolist() == [[[4, 2, 3, 1]]]


def test_self_drafts_nothing_before_it_has_seen_logits():
    drafter = SelfDrafter()
    made = drafter.propose(ask("a.", sequences=[view("")], window=2))
    assert window(made.tokens) == ["a.|.."]
    assert drafter.wants_logits and drafter.forwards == 0


def test_self_reads_the_newest_logits_as_guesses_for_the_open_block():
    drafter, one, two = SelfDrafter(), view("abcd"), view("")
    drafter.observe(one, logits_for("dbca")[0])
    drafter.observe(two, None)
    made = drafter.propose(ask("a...", "x...", sequences=[one, two], window=2))
    assert window(made.tokens) == ["abca", "x..."]
    assert made.step.tolist() == [[[0, 2, 3, 1]], [[0, 1, 1, 1]]]


def test_self_forgets_its_logits_with_the_block():
    drafter, one = SelfDrafter(), view("")
    drafter.observe(one, logits_for("ab")[0])
    drafter.observe(one, None)
    assert window(drafter.propose(ask("..", sequences=[one])).tokens) == [".."]


def test_self_never_drafts_the_mask():
    drafter, one = SelfDrafter(), view("")
    seen = logits_for("ab")
    seen[..., MASK] = 99.0
    drafter.observe(one, seen[0])
    assert window(drafter.propose(ask("..", sequences=[one])).tokens) == ["ab"]
