"""Rounds in a stream: the rows of a forward and its mask, of the size that a page can draw."""

from __future__ import annotations

import asyncio

from simsd import LLM, SamplingParams
from simsd.serving.rounds import MOST_LAYOUT_ROWS
from tests.serving.support import QUESTION, running


def test_layouts_tell_who_sees_whom(pair: LLM) -> None:
    async def check() -> None:
        async with running(pair) as server:
            for method in ("exact", "simsd"):
                asked = {"method": method, "stream_rounds": True, "stream_layouts": True}
                told = [chunk.get("simsd", {}) for chunk in await server.stream(max_tokens=16, simsd=asked)]
                llm = pair.with_options(method=method, trace=True)
                expected = llm.chat([{"role": "user", "content": QUESTION}], SamplingParams(max_tokens=16))[0].trace
                assert expected
                rounds = [part["round"] for part in told if "round" in part]
                first, last = rounds[0]["layout"], expected[0].layout
                assert first["prefix_length"] == last.prefix_length
                assert {"exact": "S0.0", "simsd": "M0"}[method] in first["labels"]
                for layout in (one["layout"] for one in rounds):
                    count = layout["rows"]
                    assert len(layout["labels"]) == len(layout["positions"]) == len(layout["tokens"]) == count
                    assert len(layout["mask"]) == count
                    assert {len(row) for row in layout["mask"]} == {count}
                    assert set("".join(layout["mask"])) <= {"0", "1"}
                if method == "simsd":  # whose window does not depend on the clock
                    masks = [[[seen == "1" for seen in row] for row in one["layout"]["mask"]] for one in rounds]
                    assert masks == [one.layout.mask for one in expected]

    asyncio.run(check())


def test_a_layout_too_large_to_look_at_is_counted(pair: LLM) -> None:
    async def check() -> None:
        async with running(pair) as server:
            wide = {"states": "subsets", "num_speculative_tokens": 64, "stream_rounds": True, "stream_layouts": True}
            told = [chunk.get("simsd", {}) for chunk in await server.stream(max_tokens=24, simsd=wide)]
            layouts = [part["round"]["layout"] for part in told if "round" in part]
            assert max(layout["rows"] for layout in layouts) > MOST_LAYOUT_ROWS
            for layout in layouts:
                assert ("mask" in layout) == (layout["rows"] <= MOST_LAYOUT_ROWS)

    asyncio.run(check())
