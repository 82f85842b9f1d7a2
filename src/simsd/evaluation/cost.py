"""What generated texts cost, all together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from simsd.llm import Completion, Stats

# Of the engine, which decodes several texts at once; everything else in `Stats` is added up over the texts.
SECONDS = ("prefill_seconds", "draft_seconds", "verify_seconds", "accept_seconds", "seconds")


@dataclass(frozen=True)
class Cost:
    """Several texts of one `LLM`, whatever the batches they were decoded in.

    stats: counts are the sums of the texts' own `Stats`: a forward counts once for each text that took part in it, so
        that tokens per forward are what a forward adds to one text. Seconds are those that the engine was busy, once.
    batch_forwards: target forwards that were run, each once however many texts took part.
    finish_reasons: how many texts ended how.
    """

    stats: Stats = field(default_factory=Stats)
    batch_forwards: int = 0
    finish_reasons: Counter[str] = field(default_factory=Counter)

    def after(self, completions: Sequence[Completion], spent: Stats) -> Cost:
        """With further texts. spent: how much the `LLM`'s totals grew by them."""
        stats = Stats.sum([self.stats, *(completion.stats for completion in completions)])
        busy = {name: getattr(self.stats, name) + getattr(spent, name) for name in SECONDS}
        reasons = Counter(completion.finish_reason for completion in completions)
        forwards = self.batch_forwards + spent.target_forwards
        return Cost(replace(stats, **busy), forwards, self.finish_reasons + reasons)

    @property
    def acceptance(self) -> str:
        """For people."""
        return "-" if self.stats.acceptance_rate is None else f"{self.stats.acceptance_rate:.0%}"

    def __str__(self) -> str:
        return (
            f"{self.stats.tokens} tokens, {self.stats.tokens_per_forward:.2f} per target forward, {self.acceptance} of "
            f"drafts accepted, {self.stats.tokens_per_second:.1f} tokens/s; {self.endings}"
        )

    @property
    def endings(self) -> str:
        """For people."""
        return "ended by " + (", ".join(f"{name} {n}" for name, n in sorted(self.finish_reasons.items())) or "nothing")

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; the first three are those of `stats`."""
        return {
            "tokens_per_forward": self.stats.tokens_per_forward,
            "acceptance_rate": self.stats.acceptance_rate,
            "tokens_per_second": self.stats.tokens_per_second,
            "finish_reasons": dict(self.finish_reasons),
            "batch_forwards": self.batch_forwards,
            "stats": self.stats.to_dict(),
        }
