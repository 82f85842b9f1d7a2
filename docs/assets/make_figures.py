"""Draws the documentation's figures; the layouts come from the library itself.

python docs/assets/make_figures.py
"""

from __future__ import annotations

from pathlib import Path

import torch

from simsd.core.draft import BlockState, Draft
from simsd.core.layout import Layout, paired, unrolled
from simsd.core.states import build, codes

HERE = Path(__file__).parent
INK, PALE, PAPER = "#1f2933", "#7b8794", "#ffffff"
FONT = 'font-family="DejaVu Sans, Verdana, sans-serif"'
COLOURS = {
    "": ("#eef1f4", PALE),
    "new": ("#cfe8d5", "#14532d"),
    "draft": ("#fde7c4", "#7a4b00"),
    "old": ("#dbe7fb", INK),
}


def text(
    x: float, y: float, words: str, size: int = 13, colour: str = INK, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f'<text x="{x}" y="{y}" {FONT} font-size="{size}" fill="{colour}" text-anchor="{anchor}"{weight}>{words}</text>'
    )


def box(x: float, y: float, width: float, height: float, fill: str, stroke: str = "none", radius: int = 4) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}" fill="{fill}" stroke="{stroke}"/>'


def arrow(x: float, y: float, length: float, label: str = "") -> str:
    line = f'<path d="M{x} {y}h{length - 6}m-5 -4l5 4l-5 4" fill="none" stroke="{PALE}" stroke-width="1.5"/>'
    return line + (text(x + length / 2 - 3, y - 7, label, 10, PALE, "middle") if label else "")


def block(x: float, y: float, cells: list[tuple[str, str]], width: int = 44) -> str:
    parts = []
    for i, (word, kind) in enumerate(cells):
        fill, ink = COLOURS[kind]
        parts.append(box(x + i * (width + 2), y, width, 24, fill))
        parts.append(text(x + i * (width + 2) + width / 2, y + 16, word or "mask", 12 if word else 9, ink, "middle"))
    return "".join(parts)


def page(width: int, height: int, title: str, body: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">'
    return "\n".join(
        [head, f"<title>{title}</title>", box(0, 0, width, height, PAPER, "#d5dbe1", 10), *body, "</svg>\n"]
    )


WORDS, ORDER = ["14", "=", "70", "cards"], [1, 0, 3, 2]  # the word revealed at each step


def after(steps: int, latest: str = "new") -> list[tuple[str, str]]:
    """The block after so many steps, the last step's word marked."""
    cells: list[tuple[str, str]] = [("", "")] * 4
    for step, at in enumerate(ORDER[:steps]):
        cells[at] = (WORDS[at], latest if step == steps - 1 else "old")
    return cells


def round_figure() -> str:
    body = [text(24, 34, "Ordinary decoding: one forward of the large model for every step", 15, bold=True)]
    width, gap = 182, 54
    for step in range(4):
        x = 24 + step * (width + gap)
        body.append(block(x, 52, after(step)))
        if step < 3:
            body.append(arrow(x + width + 6, 64, gap - 10, "forward"))
    body.append(block(24, 88, after(4)))
    stored = "its keys and values are stored by the next block's first forward, on the way"
    body.append(text(24 + width + 14, 105, f"after the 4th forward; {stored}", 12, PALE))
    body.append('<path d="M24 134H940" stroke="#d5dbe1"/>')
    body.append(text(24, 164, "Speculative decoding, exact: one forward for all four steps", 15, bold=True))
    body.append(text(24, 192, "1  the small model guesses words", 13))
    body.append(text(24, 209, "    and the order they come in", 13))
    drafted = [(word, "draft") for word in WORDS]
    body.append(block(24, 224, drafted))
    for i, at in enumerate(["2nd", "1st", "4th", "3rd"]):
        body.append(text(24 + i * 46 + 22, 264, at, 11, COLOURS["draft"][1], "middle"))
    body.append(arrow(220, 236, 50))
    body.append(text(280, 192, "2  every state on the way stands side by side:", 13))
    body.append(text(280, 209, "    the large model looks at all of them in one forward", 13))
    body.append(box(278, 222, 350, 148, "none", PALE, 8))
    for step in range(4):
        y = 232 + step * 34
        cells = [(word, "draft" if word else "") for word, _ in after(step)]
        body.append(block(290, y, cells))
        say = f"next: {WORDS[ORDER[step]]} {chr(0x2713)}"
        body.append(text(490, y + 16, say, 12, COLOURS["new"][1]))
    body.append(arrow(640, 296, 50))
    body.append(text(700, 192, "3  what it would have done anyway", 13))
    body.append(text(700, 209, "    is kept; at the first difference", 13))
    body.append(text(700, 226, "    its own step counts", 13))
    body.append(block(704, 284, [(word, "new") for word in WORDS]))
    body.append(text(704, 330, "the same text, a fourth of the forwards", 12, PALE))
    return page(964, 394, "One round of speculative decoding", body)


def grid(layout: Layout, labels: list[str], x: float, y: float, cell: int, title: str, size: int) -> list[str]:
    mask = layout.mask[0].tolist()
    rows = len(mask)
    body = [text(x, y - 40, title, 14, bold=True)]
    for i, row in enumerate(mask):
        for j, seen in enumerate(row):
            fill = "#3b6fb6" if seen else "#eef1f4"
            body.append(
                f'<rect x="{x + j * cell}" y="{y + i * cell}" width="{cell - 1}" height="{cell - 1}" fill="{fill}"/>'
            )
    for k, label in enumerate(labels):
        middle = (k + 0.5) * size * cell
        body.append(text(x + middle, y - 8, label, 12, INK, "middle"))
        body.append(text(x - 8, y + middle + 4, label, 12, INK, "end"))
    for k in range(1, len(labels)):
        at = k * size * cell - 0.5
        body.append(
            f'<path d="M{x + at} {y}v{rows * cell}M{x} {y + at}h{rows * cell}" stroke="{INK}" stroke-width="0.8"/>'
        )
    return body


def layouts_figure() -> str:
    mask_id, size = 0, 4
    state = BlockState(torch.zeros(1, size, dtype=torch.long), torch.tensor([0]), torch.tensor([0]), mask_id)
    draft = Draft(torch.tensor([[[14, 15, 16, 17]]]), torch.tensor([[[2, 1, 4, 3]]]), mask_id)
    chain = build(state, draft, [codes("chain", size)])
    chain_layout = unrolled(state, chain)
    keep = chain.valid[0].repeat_interleave(size)
    chain_layout = Layout(
        chain_layout.ids[:, keep],
        chain_layout.positions[:, keep],
        chain_layout.mask[:, keep][:, :, keep],
        chain_layout.judge,
        chain_layout.skip,
    )
    cell = 17
    body = grid(paired(state, draft), ["D", "M"], 60, 84, cell, "paired: [D | M], 2B rows", size)
    body += grid(chain_layout, [f"S{k}" for k in range(4)], 400, 84, cell, "unrolled: one copy a state", size)
    body.append(text(24, 256, "The draft's order: 2nd, 1st, 4th, 3rd position.", 12, PALE))
    body.append(text(24, 274, "D: drafted tokens, M: mask slots at the same", 12, PALE))
    body.append(text(24, 292, "positions, whose logits judge D.", 12, PALE))
    body.append(text(24, 330, "Row sees column where blue;", 12, PALE))
    body.append(text(24, 348, "all rows see the prefix.", 12, PALE))
    return page(700, 384, "Which rows see which, in the two layouts", body)


if __name__ == "__main__":
    (HERE / "round.svg").write_text(round_figure(), "utf-8")
    (HERE / "layouts.svg").write_text(layouts_figure(), "utf-8")
