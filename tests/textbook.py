"""Ordinary decoding as a textbook writes it (method section 2): the whole text in every forward, no cache, plain loops.

It shares with the library the noise (a function of seed, position and step, by definition) and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from simsd.core.sampling import ORDER, TARGET, gumbel, noise_key, uniform

LogitsOf = Callable[[list[int]], list[list[float]]]
"""Text of whole blocks -> logits of every position."""


@dataclass(frozen=True)
class Rules:
    """What the decoder is told; the names are those of `SamplingParams`."""

    denoising_steps: int
    remasking_strategy: str = "low_confidence_static"
    confidence_threshold: float = 0.9
    eb_threshold: float = 0.1
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Place:
    """One masked position: the token drawn, its confidence, the entropy there, and noise to be chosen at random by."""

    index: int
    token: int
    confidence: float
    entropy: float
    lot: float


def softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(x - top) for x in logits]
    return [x / sum(powers) for x in powers]


def draw(logits: list[float], position: int, step: int, rules: Rules) -> int:
    if rules.temperature == 0:
        return max(range(len(logits)), key=lambda i: logits[i])
    law = softmax([x / rules.temperature for x in logits])
    order = sorted(range(len(law)), key=lambda i: -law[i])
    kept = order[: rules.top_k] if rules.top_k else order
    whole = sum(law[i] for i in kept)
    nucleus: list[int] = []
    for token in kept:
        if rules.top_p < 1 and sum(law[i] for i in nucleus) / whole >= rules.top_p:
            break
        nucleus.append(token)
    noise = gumbel(noise_key(torch.tensor(rules.seed), TARGET, position, step), len(logits)).tolist()
    return max(nucleus, key=lambda i: logits[i] / rules.temperature + noise[i])


def look(index: int, logits: list[float], position: int, step: int, rules: Rules) -> Place:
    law = softmax([x / (rules.temperature or 1.0) for x in logits])
    token = draw(logits, position, step, rules)
    entropy = -sum(p * math.log(p) for p in law if p > 0)
    lot = float(uniform(noise_key(torch.tensor(rules.seed), ORDER, position, step), torch.float64))
    return Place(index, token, law[token], entropy, lot)


def chosen(places: list[Place], size: int, step: int, rules: Rules) -> list[Place]:
    """The places that this step reveals."""
    share, extra = divmod(size, rules.denoising_steps)
    n = share + (1 if step < extra else 0)
    by_confidence = sorted(places, key=lambda p: -p.confidence)
    match rules.remasking_strategy:
        case "low_confidence_static":
            return by_confidence[:n]
        case "low_confidence_dynamic":
            sure = [p for p in places if p.confidence > rules.confidence_threshold]
            return sure if len(sure) >= n else by_confidence[:n]
        case "sequential":
            return places[:n]
        case "random":
            return sorted(places, key=lambda p: p.lot)[:n]
        case "entropy_bounded":
            by_entropy = sorted(places, key=lambda p: p.entropy)
            count = 1
            while count < len(places) and sum(p.entropy for p in by_entropy[: count + 1]) < rules.eb_threshold:
                count += 1
            return by_entropy[:count]
    raise AssertionError(rules.remasking_strategy)


def decode(
    logits_of: LogitsOf, prompt: list[int], size: int, mask_id: int, max_tokens: int, rules: Rules
) -> tuple[list[int], list[int]]:
    """The generated ids and the reveal step of each inside its block."""
    text, steps = list(prompt), [-1] * len(prompt)
    while len(text) < len(prompt) + max_tokens or len(text) % size:
        first = len(text) // size * size
        missing = size - len(text) % size
        text += [mask_id] * missing
        steps += [-1] * missing
        step = 0
        while mask_id in text:
            rows = logits_of(text)
            for row in rows:
                row[mask_id] = -math.inf
            places = [look(i, rows[i], i, step, rules) for i in range(first, len(text)) if text[i] == mask_id]
            for place in chosen(places, size, step, rules):
                text[place.index] = place.token
                steps[place.index] = step
            step += 1
    end = len(prompt) + max_tokens
    return text[len(prompt) : end], steps[len(prompt) : end]
