"""Which text each place of a cache holds, so that a new sequence begins with what is there already.

Keys and values of a whole block depend on nothing behind it (block-causal attention), so equal beginnings have equal
ones, whoever computed them: requests under one system prompt, or the next turn of a conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """The place that holds the longest beginning of a text, and how many tokens of it that is: whole blocks."""

    place: int
    tokens: int


class Places:
    """Texts by place. A text stays until its place is given to another one."""

    def __init__(self, block_length: int) -> None:
        self.block_length = block_length
        self._texts: list[Sequence[int]] = []

    def hold(self, place: int, ids: Sequence[int]) -> None:
        """`place` holds this text from its first slot on."""
        self._texts += [()] * (place + 1 - len(self._texts))
        self._texts[place] = [*ids]  # as it is now: a sequence that runs grows before its K/V are stored

    def text(self, place: int) -> Sequence[int]:
        return self._texts[place] if place < len(self._texts) else ()

    def find(self, ids: Sequence[int], preferred: int) -> Source:
        """Where the longest beginning of `ids` is; `preferred`, if it is no shorter there."""
        found = Source(preferred, common(self.text(preferred), ids, self.block_length))
        for place, text in enumerate(self._texts):
            tokens = common(text, ids, self.block_length)
            if tokens > found.tokens:
                found = Source(place, tokens)
        return found


def common(one: Sequence[int], other: Sequence[int], block_length: int) -> int:
    """How many leading tokens two texts share, in whole blocks."""
    low, high = 0, min(len(one), len(other)) // block_length
    while low < high:
        middle = (low + high + 1) // 2
        begin, end = low * block_length, middle * block_length
        low, high = (middle, high) if one[begin:end] == other[begin:end] else (low, middle - 1)
    return low * block_length
