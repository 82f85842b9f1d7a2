"""From logits to tokens: temperature, top-k, top-p, and noise that is a function of its key (method sections 2, 5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from simsd.core.tensors import mapped

# What a noise value is for. Draws of different purposes must be independent of each other.
TARGET, ORDER, PROPOSE, ACCEPT, RESIDUAL = range(5)

PIECE = 2**19  # logits that a CPU looks at together: its caches hold them, and their memory is used again
FEW = 1024  # tokens that nearly always hold the mass of top-p


@dataclass(frozen=True)
class Sampler:
    """How each of N sequences draws its tokens.

    temperature [N] (0 = greedy), top_k [N] (0 = off), top_p [N] in (0, 1], seed [N] int64.
    The others are host values, so that a greedy batch computes neither noise nor filters: `random` and `filtered` say
    whether any sequence needs them; `widest` is the largest top-k, 0 where some sequence that draws has none.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor
    random: bool
    filtered: bool
    widest: int

    @classmethod
    def of(
        cls,
        temperature: Sequence[float],
        top_k: Sequence[int],
        top_p: Sequence[float],
        seed: Sequence[int],
        device: torch.device | None = None,
    ) -> Sampler:
        """From one value a sequence."""
        drawing = [(k, p) for t, k, p in zip(temperature, top_k, top_p, strict=True) if t > 0]
        widths = [k for k, _ in drawing]
        return cls(
            temperature=torch.tensor(temperature, dtype=torch.float32, device=device),
            top_k=torch.tensor(top_k, device=device),
            top_p=torch.tensor(top_p, dtype=torch.float32, device=device),
            seed=torch.tensor(seed, device=device),
            random=bool(drawing),
            filtered=any(k > 0 or p < 1 for k, p in drawing),
            widest=max(widths) if all(widths) and widths else 0,
        )


@dataclass(frozen=True)
class Drawn:
    """Tokens drawn at every place of [N, ..., B].

    token:   the drawn id.
    doubt:   log((1 - c) / c) of the confidence c = p(token) before top-k / top-p. It orders like -c, and unlike c
             it still tells apart confidences that round to 1.
    entropy: of the same distribution, in nats; None unless asked for.
    """

    token: Tensor
    doubt: Tensor
    entropy: Tensor | None


def _logical_shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """A bijective 64-bit hash (the finaliser of splitmix64, Steele et al. 2014)."""
    x = (x ^ _logical_shift(x, 30)).mul_(-0x40A7B892E31B1A47)
    x = x.bitwise_xor_(_logical_shift(x, 27)).mul_(-0x6B2FB644ECCEEE15)
    return x.bitwise_xor_(_logical_shift(x, 31))


_GOLDEN = -0x61C8864680B583EB


def _wrap(x: int) -> int:
    """Python's unbounded integer as int64 arithmetic would leave it."""
    return (x + 2**63) % 2**64 - 2**63


def noise_key(seed: Tensor, *counters: Tensor | int) -> Tensor:
    """int64 keys from a seed and any counters (purpose, position, step ...), broadcast together."""
    key = _mix(seed + _GOLDEN)
    for counter in counters:
        step = counter * _GOLDEN + 1
        key = _mix(key ^ (_wrap(step) if isinstance(step, int) else step))
    return key


def uniform(key: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers in the open interval (0, 1), one per key; 23 bits, so that float32 never rounds one to 0 or 1."""
    return _logical_shift(_mix(key), 41).to(dtype).add_(0.5).mul_(2.0**-23)


def gumbel(key: Tensor, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard Gumbel noise [..., size] for keys [...]."""
    return gumbel_of(key, torch.arange(size, device=key.device), dtype)


def gumbel_of(key: Tensor, index: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The noise of some tokens alone: index [..., K] or [K]."""
    return uniform(key[..., None] + index * _GOLDEN, dtype).log_().neg_().log_().neg_()


def _per_sequence(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.dim() - 1))


def scale(logits: Tensor, sampler: Sampler) -> Tensor:
    """Logits [N, ..., V] divided by the temperature; greedy sequences keep theirs."""
    if not sampler.random:
        return logits
    temperature = torch.where(sampler.temperature > 0, sampler.temperature, 1.0)
    return logits / _per_sequence(temperature, logits).to(logits.dtype)


def keep_top(logits: Tensor, sampler: Sampler) -> Tensor:
    """Scaled logits with all but the top-k, then the top-p tokens at -inf. Equal logits are kept by lower id first."""
    index, kept = _filtered(logits, sampler)
    return kept if index is None else torch.full_like(logits, -torch.inf).scatter(-1, index, kept)


def _filtered(logits: Tensor, sampler: Sampler) -> tuple[Tensor | None, Tensor]:
    """`keep_top` of the tokens that it may keep alone: their ids [N, ..., K] in rising order, None for all; and their
    logits. A vocabulary is not sorted for the sake of a few."""
    size = logits.shape[-1]
    if not sampler.filtered:
        return None, logits
    if 0 < sampler.widest < size // 2:
        index = _largest(logits, sampler.widest)
        return index, _cut(logits.gather(-1, index), sampler, None)[0]
    weight = None if sampler.widest else _weight(logits, logits.amax(-1, keepdim=True)).sum(-1, keepdim=True)
    if weight is not None and logits.device.type == "cpu" and size > 2 * FEW:
        index = _largest(logits, FEW)
        kept, enough = _cut(logits.gather(-1, index), sampler, weight)
        if enough.all():
            return index, kept
    return None, _cut(logits, sampler, weight)[0]


def _largest(logits: Tensor, count: int) -> Tensor:
    """Ids [..., count] of the largest logits, in rising order; of equal ones the lower ids."""
    least = logits.topk(count).values[..., -1:]
    above, equal = logits > least, logits == least
    room = count - above.sum(-1, keepdim=True)
    above |= equal & (equal.cumsum(-1, dtype=torch.int32) <= room)
    rising = torch.arange(logits.shape[-1], 0, -1, dtype=torch.int32, device=logits.device)
    return (above * rising).topk(count).indices


def _weight(logits: Tensor, top: Tensor) -> Tensor:
    return (logits.to(torch.promote_types(logits.dtype, torch.float32)) - top).exp_()


def _cut(logits: Tensor, sampler: Sampler, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logits [N, ..., K] of the best tokens, by id, with -inf where a filter takes one out; and whether those K hold
    all that a row may keep. weight [N, ..., 1]: that of all tokens, of rows without a top-k. All sums are in the order
    of the logits, so that no row's depend on how many tokens are looked at for another's sake."""
    count = logits.shape[-1]
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(count, device=logits.device)
    top_k = _per_sequence(sampler.top_k, logits)
    kept = (rank < top_k) | (top_k == 0)
    upto = _weight(ordered, ordered[..., :1]).masked_fill_(~kept, 0.0).cumsum(-1)
    total = upto[..., -1:] if weight is None else torch.where(top_k > 0, upto[..., -1:], weight)
    top_p = _per_sequence(sampler.top_p, logits).to(upto.dtype)
    before = torch.nn.functional.pad(upto[..., :-1], (1, 0))
    # the best one stays, also where so small a top_p is 0 in these numbers
    kept = kept & ((before < top_p * total) | (top_p >= 1) | (rank == 0))
    greedy = _per_sequence(sampler.temperature == 0, logits)
    enough = greedy | ((top_k > 0) & (top_k <= count)) | ((top_p < 1) & (upto[..., -1:] >= top_p * total))
    return torch.full_like(logits, -torch.inf).scatter(-1, order, ordered.masked_fill(~kept, -torch.inf)), enough


def distribution(logits: Tensor, sampler: Sampler) -> Tensor:
    """Probabilities [N, ..., V] that a token is drawn with: temperature, top-k, top-p; one-hot where greedy."""
    probabilities = keep_top(scale(logits, sampler), sampler).softmax(-1)
    greedy = _per_sequence(sampler.temperature == 0, logits)
    onehot = torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    return torch.where(greedy, onehot, probabilities)


def doubt_of(logits: Tensor, token: Tensor) -> Tensor:
    """log((1 - p) / p) of each token [...] under softmax(logits [..., V]), accurate also where p rounds to 1."""
    index = token[..., None]
    rest = logits.scatter(-1, index, -torch.inf).logsumexp(-1)
    return rest - logits.gather(-1, index).squeeze(-1)


def entropy_of(logits: Tensor) -> Tensor:
    """Entropy in nats of softmax(logits [..., V]), as a sum of non-negative terms: accurate also near zero."""
    top = logits.argmax(-1, keepdim=True)
    doubt = doubt_of(logits, top.squeeze(-1))[..., None]
    surprise = logits.gather(-1, top) - logits + torch.nn.functional.softplus(doubt)
    terms = surprise * (-surprise).exp()
    return terms.masked_fill(logits == -torch.inf, 0.0).sum(-1)


def draw(logits: Tensor, sampler: Sampler, key: Tensor | None, *, entropy: bool = False) -> Drawn:
    """One token for each row of logits [N, ..., V]: argmax where greedy, else by the Gumbel-max trick.

    key: int64 [N, ...], see `noise_key`; unused (may be None) when every sequence is greedy.
    The confidence is taken before top-k / top-p, because with top_k = 1 it would be 1 everywhere (method section 2).
    """
    if logits.device.type != "cpu" or logits.numel() <= PIECE:
        return _draw(logits, sampler, key, entropy)
    pieces = [_draw(*piece, entropy) for piece in _pieces(logits, sampler, key)]

    def whole(parts: list[Tensor | None]) -> Tensor:
        return torch.cat([part for part in parts if part is not None]).view(logits.shape[:-1])

    return Drawn(
        whole([one.token for one in pieces]),
        whole([one.doubt for one in pieces]),
        whole([one.entropy for one in pieces]) if entropy else None,
    )


def _pieces(logits: Tensor, sampler: Sampler, key: Tensor | None) -> Iterator[tuple[Tensor, Sampler, Tensor | None]]:
    """A few rows [n, V] at a time, each as if it were a sequence."""
    shape = logits.shape[:-1]
    rows, step = logits.flatten(0, -2), max(1, PIECE // logits.shape[-1])
    keys = None if key is None else key.expand(shape).flatten()
    sequence = torch.arange(shape[0]).repeat_interleave(shape[1:].numel())
    for begin in range(0, len(rows), step):
        here = slice(begin, begin + step)
        mine = sequence[here]
        yield rows[here], mapped(sampler, lambda values, mine=mine: values[mine]), None if keys is None else keys[here]


def _draw(logits: Tensor, sampler: Sampler, key: Tensor | None, entropy: bool) -> Drawn:
    scaled = scale(logits, sampler)
    token = scaled.argmax(-1)
    if sampler.random:
        assert key is not None
        index, kept = _filtered(scaled, sampler)
        noise = gumbel(key, logits.shape[-1]) if index is None else gumbel_of(key, index)
        drawn = (kept + noise.to(logits.dtype)).argmax(-1, keepdim=True)
        drawn = (drawn if index is None else index.gather(-1, drawn)).squeeze(-1)
        token = torch.where(_per_sequence(sampler.temperature == 0, token), token, drawn)
    return Drawn(token, doubt_of(scaled, token), entropy_of(scaled) if entropy else None)
