"""What docs/performance.md says of batches."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import batches as measured

Key = tuple[str, str, int]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_texts_are_those_of_ordinary_decoding_in_all_repeats_or_not_at_all(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd, asked = ("exact", measured.SCHEDULES[1], 16), Counter[Key]()

    def with_options(*, method: str, remasking_strategy: str, max_num_seqs: int) -> Key:
        return method, remasking_strategy, max_num_seqs

    def ask(llm: Key, items: list[Any], params: list[Any]) -> list[Any]:
        """Each schedule has its own text; once another one comes, after the untimed answers."""
        asked[llm] += 1
        token = measured.SCHEDULES.index(llm[1]) + 10 * (llm == odd and asked[llm] == 1 + at)
        return [SimpleNamespace(token_ids=[token] * 5) for _ in items]

    monkeypatch.setattr(measured, "LLM", lambda **_: SimpleNamespace(with_options=with_options))
    monkeypatch.setattr(measured, "ask", ask)
    rows = measured.batches(questions=5, repeats=3)
    assert len(rows) == 16
    differing = [(row["method"], row["schedule"], row["sequences"]) for row in rows if not row["same_text"]]
    assert differing == [odd]
