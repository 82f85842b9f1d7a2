"""What generated texts cost, all together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from simsd.llm import Completion, Stats


@dataclass(frozen=True)
class Cost:
    """Several texts of one `LLM`, whatever the batches they were decoded in.

    stats: the `LLM`'s totals: a round counts once for its whole batch, and `seconds` is busy time.
    forwards: target forwards of each text, added up: a round counts once for each text in its batch.
    finish_reasons: how many texts ended how.
    """

    stats: Stats
    forwards: int = 0
    finish_reasons: Counter[str] = field(default_factory=Counter)

    def after(self, completions: Iterable[Completion], totals: Stats) -> Cost:
        """With further texts; totals are the `LLM`'s newest."""
        found = list(completions)
        forwards = sum(completion.stats.target_forwards for completion in found)
        reasons = Counter(completion.finish_reason for completion in found)
        return Cost(totals, self.forwards + forwards, self.finish_reasons + reasons)

    @property
    def tokens_per_forward(self) -> float:
        """Tokens that a forward adds to one text: what speculation raises, and batching does not."""
        return self.stats.tokens / max(1, self.forwards)

    @property
    def acceptance(self) -> str:
        """For people."""
        return "-" if self.stats.acceptance_rate is None else f"{self.stats.acceptance_rate:.0%}"

    def __str__(self) -> str:
        return (
            f"{self.stats.tokens} tokens, {self.tokens_per_forward:.2f} per target forward, {self.acceptance} of "
            f"drafts accepted, {self.stats.tokens_per_second:.1f} tokens/s; {self.endings}"
        )

    @property
    def endings(self) -> str:
        """For people."""
        return "ended by " + (", ".join(f"{name} {n}" for name, n in sorted(self.finish_reasons.items())) or "nothing")

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON. In `stats` forwards are those of whole batches."""
        return {
            "tokens_per_forward": self.tokens_per_forward,
            "acceptance_rate": self.stats.acceptance_rate,
            "tokens_per_second": self.stats.tokens_per_second,
            "finish_reasons": dict(self.finish_reasons),
            "stats": self.stats.to_dict(),
        }
