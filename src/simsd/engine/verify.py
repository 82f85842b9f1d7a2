"""From a draft to a layout, and from its logits to an outcome: the two ways to verify (method sections 4 and 5)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from simsd.core import acceptance, sampling
from simsd.core.acceptance import Outcome
from simsd.core.draft import Draft
from simsd.core.layout import Layout, paired, unrolled
from simsd.core.likelihood import keep_likely, visits
from simsd.core.sampling import Drawn
from simsd.core.schedule import reveal
from simsd.core.states import States, alone, build, codes, select, trim
from simsd.drafters.base import order_noise
from simsd.engine.auto import Auto, Choice, Foreseen
from simsd.engine.batch import Round, Rules
from simsd.engine.options import DecodingOptions

# Likely states: a walk comes by each with at least this probability, as the draft sees it. Below, the B query tokens of
# a copy cost more time than the tokens it saves, on the embedded pair on a CPU.
LEAST_VISITS = 0.1

# In longer blocks the table of moves between states would cost more than it could ever save: they get the chain.
LONGEST_LIKELY = 32


@dataclass(frozen=True)
class Plan:
    """What a round verifies: a draft, in a layout without pending blocks.

    states: the copies, where the layout is unrolled.
    judged: [N, W, B] in the draft's order: False for places that no row judges; None where each has its row.
    choice: what `auto` chose the states by.
    """

    draft: Draft
    layout: Layout
    states: States | None = None
    judged: Tensor | None = None
    choice: Choice | Promises | None = None


@dataclass(frozen=True)
class Promises:
    """A choice that the host has yet to hear of, and to learn from.

    by_window: [W, C] as `Auto.learn` wants them; kept: [W] as in `Choice`.
    """

    by_window: Tensor
    kept: Tensor


@dataclass(frozen=True)
class Verdict:
    """outcome: what is committed. bad: [N] True where logits were not numbers."""

    outcome: Outcome
    bad: Tensor


def plan(options: DecodingOptions, now: Round, draft: Draft, rules: Rules, auto: Auto | Foreseen | None = None) -> Plan:
    """Lays the draft out as the options say; with `auto`, with as many states as pay, or were foreseen to."""
    if options.layout == "paired":
        return Plan(draft, paired(now.state, draft, position_copy=options.position_copy))
    if options.method == "none" or (auto is not None and draft.doubt is None):  # nothing was drafted
        states = alone(now.state)
        return Plan(draft, unrolled(now.state, states), states)
    if auto is not None:
        states, choice = _best_states(draft, now, auto)
        return Plan(draft, unrolled(now.state, states), states, choice=choice)
    if options.acceptance == "replay":
        states = _states(draft, now, options.states or _default_states(rules))
        return Plan(draft, unrolled(now.state, states), states)
    states = _states(draft, now, "chain")
    layout = unrolled(now.state, states)
    entry, judged = _chain_entries(now, draft, states)
    size = draft.tokens.shape[2]
    rows = entry * size + torch.arange(size, device=entry.device)
    return Plan(draft, replace(layout, judge=rows.flatten(1)), states, judged)


def judge(options: DecodingOptions, now: Round, plan: Plan, logits: Tensor, rules: Rules) -> Verdict:
    """Reads the logits [N, J, V] of the plan's judged rows, as [N, E, B, V] with one entry a state or a block."""
    logits = entries(plan, logits)
    if options.acceptance == "replay":
        assert plan.states is not None
        outcome, drawn = _replay(now, plan, plan.states, logits, rules)
    else:
        outcome, drawn = _in_draft_order(now, plan, logits, rules)
    return Verdict(outcome, drawn.doubt.isnan().flatten(1).any(1))


def entries(plan: Plan, logits: Tensor) -> Tensor:
    """The judged logits as [N, E, B, V]."""
    return logits.view(logits.shape[0], -1, plan.draft.tokens.shape[2], logits.shape[-1])


def stored_blocks(plan: Plan, outcome: Outcome) -> Tensor:
    """[N] leading finished blocks whose exact K/V the layout has just written where they belong.

    A finished copy's K/V depend on nothing but its own tokens and the blocks before it, so equal tokens suffice.
    """
    states = plan.states
    if states is None or states.in_place == 0:
        return torch.zeros_like(outcome.entry)
    front = states.in_place
    same = (outcome.tokens[:, :front] == states.tokens[:, :front]).all(-1) & states.valid[:, :front]
    return same.long().cumprod(-1).sum(-1)


def log_probabilities(logits: Tensor, outcome: Outcome) -> Tensor:
    """[N, W, B] log p of the committed tokens under the target's softmax at temperature 1; 0 elsewhere.

    logits: [N, E, B, V].
    """
    source = outcome.source.clamp(min=0)[..., None].expand(-1, -1, -1, logits.shape[-1])
    laws = logits.gather(1, source).log_softmax(-1)
    picked = laws.gather(-1, outcome.tokens[..., None]).squeeze(-1)
    return torch.where(outcome.source >= 0, picked, 0.0)


def own_step(rules: Rules, logits: Tensor, masked: Tensor, place: Tensor, taken: Tensor) -> tuple[Drawn, Tensor]:
    """The target's own next step from each of E states: what it draws, and the positions [N, E, B] it reveals.

    logits [N, E, B, V]; masked, place (absolute positions) [N, E, B]; taken [N, E] steps taken before.
    """
    sampler, schedule = rules.sampler, rules.schedule
    key = None
    if sampler.random:
        key = sampling.noise_key(sampler.seed[:, None, None], sampling.TARGET, place, taken[..., None])
    drawn = sampling.draw(logits, sampler, key, entropy=schedule.needs_entropy)
    noise = order_noise(sampler, schedule, place, taken)
    return drawn, reveal(schedule, masked, taken, drawn.doubt, drawn.entropy, noise)


def _default_states(rules: Rules) -> str:
    """Where tokens are revealed one by one by confidence, their order is what a draft is least sure of."""
    return "likely" if "low_confidence_static" in rules.schedule.present else "chain"


def _tables(draft: Draft, now: Round, kind: str) -> list[Tensor]:
    blocks, size = draft.tokens.shape[1:]
    return [codes(kind, now.masked if w == 0 else size) for w in range(blocks)]


def _states(draft: Draft, now: Round, kind: str) -> States:
    if kind == "likely" and draft.tokens.shape[2] > LONGEST_LIKELY:
        kind = "chain"
    tables = _tables(draft, now, kind)
    states = build(now.state, draft, tables)
    if kind == "likely" and draft.doubt is not None:
        states = keep_likely(states, torch.cat(visits(draft, tables), 1), LEAST_VISITS)
    return states if now.steady else trim(states)


def _best_states(draft: Draft, now: Round, auto: Auto | Foreseen) -> tuple[States, Choice | Promises]:
    """The states that pay, by `auto`. It reads the draft's promises on the host, unless it has foreseen how many."""
    size = draft.tokens.shape[2]
    tables = _tables(draft, now, "likely" if size <= LONGEST_LIKELY else "chain")
    states = build(now.state, draft, tables)
    front, block = states.in_place, states.block[:, states.in_place :]
    chance = torch.where(states.valid[:, front:], torch.cat(visits(draft, tables), 1), 0.0)
    chance = chance.nan_to_num(0.0, 0.0, 0.0)  # a draft model may overflow: that promises nothing
    trust = auto.trust if isinstance(auto, Foreseen) else chance.new_tensor(auto.trust)
    trusted = chance * trust.to(chance.dtype)[block]
    trusted[:, states.root - front].fill_(1.0)
    promises = [
        torch.where(block < window, trusted, 0.0).sort(1, descending=True).values.mean(0)
        for window in range(1, len(tables) + 1)
    ]
    if isinstance(auto, Foreseen):
        count = min(auto.states, chance.shape[1])
    else:
        known = [promise.tolist() for promise in promises]
        count = auto.choose(known[-1], len(chance), now.fresh, len(tables))
        auto.learn(len(chance), now.fresh, known)
    trusted[:, states.root - front].fill_(torch.inf)
    index = trusted.topk(count, 1).indices
    kept = chance.gather(1, index)
    of_kept = block.gather(1, index)
    of_block = torch.stack([torch.where(of_kept == w, kept, 0.0).sum() for w in range(len(tables))])
    states = select(states, index + front)
    if isinstance(auto, Foreseen):
        return states, Promises(torch.stack(promises), of_block)
    return states if now.steady else trim(states), Choice(now.fresh, len(tables), of_block.tolist())


def _replay(now: Round, plan: Plan, states: States, logits: Tensor, rules: Rules) -> tuple[Outcome, Drawn]:
    front, size = states.in_place, logits.shape[2]
    offset = torch.arange(size, device=logits.device)
    place = (now.state.start[:, None] + states.block[:, front:] * size)[..., None] + offset
    masked = states.tokens[:, front:] == states.mask_id
    drawn, shown = own_step(rules, logits, masked, place, states.taken[:, front:])
    token, revealed = (pad(one, (0, 0, front, 0)) for one in (drawn.token, shown))  # finished states reveal nothing
    outcome = acceptance.replay(now.state, states, token, revealed, states.blocks * size + 1, rules.timed)
    # the last block's finished state is not in the set, but a step that ends there was foreseen all the same
    foreseen = (plan.draft.complete & (outcome.tokens == plan.draft.tokens).all(-1))[..., None] & (outcome.source >= 0)
    judged = replace(
        outcome,
        accepted=outcome.accepted | foreseen,
        source=(outcome.source - front).clamp(min=-1),
        entry=(outcome.entry - front).clamp(min=0),
    )
    return judged, drawn


def _in_draft_order(now: Round, plan: Plan, logits: Tensor, rules: Rules) -> tuple[Outcome, Drawn]:
    draft, sampler = plan.draft, rules.sampler
    blocks = draft.tokens.shape[1]
    place = now.state.positions(blocks)
    frontier = draft.complete.long().cumprod(-1).sum(-1, keepdim=True)
    here = torch.arange(blocks, device=place.device) == frontier
    # how far the window reaches depends on the batch: a later block is open only where something was drafted into it
    here[:, 1:] &= draft.drafted[:, 1:].any(-1)
    free = (draft.tokens == draft.mask_id) & here[..., None]
    taken = (draft.local_step() * draft.drafted).amax(-1)
    taken[:, 0] += now.state.taken
    drawn, bonus = own_step(rules, logits, free, place, taken)
    if sampler.random:
        key = sampling.noise_key(sampler.seed[:, None, None], sampling.ACCEPT, now.salt[:, None, None], place)
        other = sampling.noise_key(sampler.seed[:, None, None], sampling.RESIDUAL, now.salt[:, None, None], place)
        law = sampling.distribution(logits, sampler)
        noise = sampling.gumbel(other, logits.shape[-1])
        keep, residual = acceptance.rejection(draft, law, sampling.uniform(key), noise)
        token = torch.where(draft.drafted, residual, drawn.token)
    else:
        keep, token = acceptance.match(draft, drawn), drawn.token
    judged = torch.ones_like(free) if plan.judged is None else plan.judged
    return acceptance.in_draft_order(now.state, draft, token, keep, bonus, judged), drawn


def _chain_entries(now: Round, draft: Draft, states: States) -> tuple[Tensor, Tensor]:
    """For each place of the window: the state of the chain in which its step is taken, and whether it is in the set."""
    before = draft.local_step() - 1
    before[:, 0] += now.state.taken[:, None]
    front = states.in_place
    block = torch.arange(draft.tokens.shape[1], device=before.device)[:, None, None]
    here = (states.block[:, None, None] == block) & (states.taken[:, None, None] == before[..., None])
    here &= states.valid[:, None, None]
    here[..., :front].fill_(False)
    return here.long().argmax(-1), here.any(-1)
