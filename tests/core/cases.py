"""Small hand-written cases: letters are tokens, a dot is MASK, digits are steps, `|` stands between blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from simsd.core.draft import BlockState, Draft
from simsd.core.sampling import Sampler
from simsd.core.schedule import STRATEGIES, Schedule, doubt_threshold, quotas
from simsd.core.states import States

MASK = 26
VOCAB = 27


def ids(text: str) -> list[int]:
    """'ab.' -> [0, 1, MASK]; blanks and bars are skipped."""
    return [MASK if c == "." else ord(c) - ord("a") for c in text if c not in " |"]


def letters(tokens: Tensor | Sequence[int]) -> str:
    """The inverse of `ids` for one block."""
    flat: list[int] = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
    return "".join("." if t == MASK else chr(t + ord("a")) for t in flat)


def window(tokens: Tensor) -> list[str]:
    """[N, W, B] -> each sequence as 'ab|c.'."""
    return ["|".join(letters(block) for block in row) for row in tokens]


def digits(text: str, blocks: int | None = None) -> Tensor:
    """'01|23' -> [W, B] (or [B] without a bar and `blocks`); '-' is -1."""
    parts = [[-1 if c == "-" else int(c) for c in part if c != " "] for part in text.split("|")]
    return torch.tensor(parts if blocks is not None or len(parts) > 1 else parts[0])


def block_state(*rows: str, start: int | Sequence[int] = 0, taken: int | Sequence[int] = 0) -> BlockState:
    """One sequence for each row."""

    def each(value: int | Sequence[int]) -> Tensor:
        return torch.tensor([value] * len(rows) if isinstance(value, int) else list(value))

    return BlockState(torch.tensor([ids(r) for r in rows]), each(start), each(taken), MASK)


def draft(*rows: tuple[str, str], proposal: Tensor | None = None) -> Draft:
    """Rows ('ab|c.', '01|23') of tokens and steps."""
    tokens = torch.stack([torch.tensor([ids(part) for part in tokens.split("|")]) for tokens, _ in rows])
    step = torch.stack([digits(steps, 0) for _, steps in rows])
    return Draft(tokens, step, MASK, proposal)


def states(*rows: tuple[str, int, int, int], root: int = 0, in_place: int = 0) -> States:
    """A set of one sequence from rows (tokens, block, parent, taken)."""
    block = torch.tensor([[row[1] for row in rows]])
    return States(
        tokens=torch.tensor([[ids(row[0]) for row in rows]]),
        block=block,
        parent=torch.tensor([[row[2] for row in rows]]),
        taken=torch.tensor([[row[3] for row in rows]]),
        valid=torch.ones_like(block, dtype=torch.bool),
        mask_id=MASK,
        blocks=int(block.max()) + 1,
        root=root,
        in_place=in_place,
    )


def matrix(text: str) -> Tensor:
    """Lines of 0 and 1 -> bool matrix; blanks inside a line and bars are for the eye."""
    lines = [[c == "1" for c in line if c in "01"] for line in text.strip().splitlines()]
    return torch.tensor([line for line in lines if line])


def make_sampler(
    temperature: float | Sequence[float] = 0.0,
    top_k: int | Sequence[int] = 0,
    top_p: float | Sequence[float] = 1.0,
    seed: int | Sequence[int] = 0,
    batch: int = 1,
) -> Sampler:
    """A sampler of `batch` sequences; a single value is every sequence's."""

    def each(value: float | int | Sequence[float] | Sequence[int]) -> list[Any]:
        return [value] * batch if isinstance(value, int | float) else list(value)

    return Sampler.of(each(temperature), each(top_k), each(top_p), each(seed))


def make_schedule(
    strategy: str | Sequence[str] = "low_confidence_static",
    block_length: int = 4,
    denoising_steps: int | None = None,
    threshold: float = 0.9,
    entropy: float = 0.1,
    batch: int = 1,
) -> Schedule:
    """A schedule of `batch` sequences; a single strategy is every sequence's."""
    names = [strategy] * batch if isinstance(strategy, str) else list(strategy)
    quota = quotas(block_length, denoising_steps or block_length)
    return Schedule(
        strategy=torch.tensor([STRATEGIES.index(name) for name in names]),
        quota=torch.tensor([quota] * len(names)),
        doubt=torch.tensor([doubt_threshold(threshold)] * len(names)),
        entropy=torch.tensor([entropy] * len(names)),
        present=frozenset(names),
    )
