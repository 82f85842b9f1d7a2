"""Covering designs: a few cases in which every pair of values of any two factors meets at least once."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any


def pairwise(factors: Mapping[str, Sequence[Any]], seed: int = 0) -> list[dict[str, Any]]:
    """Cases (factor -> value) that together hold every pair; greedy, the same in every run."""
    chance = random.Random(seed)
    names = list(factors)
    open_pairs = {
        ((a, i), (b, j))
        for a, b in combinations(names, 2)
        for i in range(len(factors[a]))
        for j in range(len(factors[b]))
    }
    cases = []
    while open_pairs:
        (first, i), (second, j) = min(open_pairs)
        case = {first: i, second: j}
        for name in chance.sample([n for n in names if n not in case], len(names) - 2):
            met = {value: _met(name, value, case, names) & open_pairs for value in range(len(factors[name]))}
            most = max(len(pairs) for pairs in met.values())
            case[name] = chance.choice([value for value, pairs in met.items() if len(pairs) == most])
        open_pairs -= {_pair(a, case[a], b, case[b], names) for a, b in combinations(names, 2)}
        cases.append({name: factors[name][case[name]] for name in names})
    return cases


def _met(name: str, value: int, case: Mapping[str, int], names: list[str]) -> set[Any]:
    """The pairs that this value of a factor makes with those already chosen."""
    return {_pair(name, value, other, at, names) for other, at in case.items()}


def _pair(a: str, i: int, b: str, j: int, names: list[str]) -> tuple[tuple[str, int], tuple[str, int]]:
    return ((a, i), (b, j)) if names.index(a) < names.index(b) else ((b, j), (a, i))
