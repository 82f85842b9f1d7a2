"""From logits to tokens: temperature, top-k, top-p, and noise that is a function of its key (method sections 2, 5)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# What a noise value is for. Draws of different purposes must be independent of each other.
TARGET, ORDER, PROPOSE, ACCEPT, RESIDUAL = range(5)


@dataclass(frozen=True)
class Sampler:
    """How each of N sequences draws its tokens.

    temperature [N] (0 = greedy), top_k [N] (0 = off), top_p [N] in (0, 1], seed [N] int64.
    `random` and `filtered` say whether any sequence needs noise or filters; they are host values, so that
    a greedy batch never computes either.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor
    random: bool
    filtered: bool


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
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """A bijective 64-bit hash (the finaliser of splitmix64, Steele et al. 2014)."""
    x = (x ^ _logical_shift(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ _logical_shift(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ _logical_shift(x, 31)


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
    return (_logical_shift(_mix(key), 41).to(dtype) + 0.5) * 2.0**-23


def gumbel(key: Tensor, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard Gumbel noise [..., size] for keys [...]."""
    index = torch.arange(size, device=key.device) * _GOLDEN
    return -(-uniform(key[..., None] + index, dtype).log()).log()


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
    if not sampler.filtered:
        return logits
    ordered, index = logits.sort(dim=-1, descending=True, stable=True)
    top_k = _per_sequence(torch.where(sampler.top_k > 0, sampler.top_k, logits.shape[-1]), logits)
    kept = torch.arange(logits.shape[-1], device=logits.device) < top_k
    probabilities = ordered.masked_fill(~kept, -torch.inf).softmax(-1)
    top_p = _per_sequence(sampler.top_p, logits).to(logits.dtype)
    before = probabilities.cumsum(-1) - probabilities
    # the best one stays, also where so small a top_p is 0 in these numbers
    best = torch.arange(logits.shape[-1], device=logits.device) == 0
    kept = kept & ((before < top_p) | (top_p >= 1) | best)
    return torch.full_like(logits, -torch.inf).scatter(-1, index, ordered.masked_fill(~kept, -torch.inf))


def distribution(logits: Tensor, sampler: Sampler) -> Tensor:
    """Probabilities [N, ..., V] that a token is drawn with: temperature, top-k, top-p; one-hot where greedy."""
    probabilities = keep_top(scale(logits, sampler), sampler).softmax(-1)
    greedy = _per_sequence(sampler.temperature == 0, logits)
    onehot = torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    return torch.where(greedy, onehot, probabilities)


def doubt_of(logits: Tensor, token: Tensor) -> Tensor:
    """log((1 - p) / p) of each token [...] under softmax(logits [..., V]), accurate also where p rounds to 1."""
    rest = logits.scatter(-1, token[..., None], -torch.inf).logsumexp(-1)
    return rest - logits.gather(-1, token[..., None]).squeeze(-1)


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
    scaled = scale(logits, sampler)
    token = scaled.argmax(-1)
    if sampler.random:
        assert key is not None
        noisy = keep_top(scaled, sampler) + gumbel(key, logits.shape[-1]).to(logits.dtype)
        token = torch.where(_per_sequence(sampler.temperature == 0, token), token, noisy.argmax(-1))
    return Drawn(token, doubt_of(scaled, token), entropy_of(scaled) if entropy else None)
