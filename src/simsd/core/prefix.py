"""How much of each sequence the cache holds, in the two ways in which a forward wants to know it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class Known:
    """Numbers of the host: what is as long as it is, and equal lengths take the short way.

    stored: tokens of each sequence that the cache holds; skipped: fill-up rows in front of each (`Layout.skip`).
    """

    stored: Sequence[int]
    skipped: Sequence[int]

    def and_on(self, tokens: int) -> Known:
        """So many tokens further."""
        return replace(self, stored=[have + tokens for have in self.stored])


@dataclass(frozen=True)
class Bucket:
    """Numbers of the device: the same work serves all lengths up to `reach`, as a recorded graph must.

    stored: [N] as above. reach: at least as long as the longest; the mask hides what is beyond a sequence's own length.
    """

    stored: Tensor
    reach: int

    def and_on(self, tokens: int) -> Bucket:
        """So many tokens further; `reach` must allow for it."""
        return replace(self, stored=self.stored + tokens)


Prefix = Known | Bucket
