"""Batches of questions with answers, and the noise and mask of block-diffusion training."""

from __future__ import annotations

import random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.skills import WEIGHTS, Sample, draw
from training.tokenizer import END, END_OF_TEXT, START, special_id

GRID = 16  # lengths are rounded up to the longest block length, so that every block length divides them


class Stream:
    """Endless batches of (ids [N, L], answer start [N], answer end [N]), L a multiple of 16."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        seed: int,
        tokens_per_batch: int,
        max_length: int = 256,
        weights: dict[str, float] = WEIGHTS,
    ) -> None:
        self.tokenizer = tokenizer
        self.r = random.Random(seed)
        self.tokens_per_batch = tokens_per_batch
        self.max_length = max_length
        self.weights = weights
        self.pad = special_id(tokenizer, END_OF_TEXT)
        self.ready: list[list[tuple[list[int], int]]] = []

    def encode(self, sample: Sample) -> tuple[list[int], int]:
        prompt = f"{START}user\n{sample['question']}{END}\n{START}assistant\n"
        ids = self.tokenizer.encode(prompt).ids
        return ids + self.tokenizer.encode(sample["answer"] + END).ids, len(ids)

    def refill(self, count: int = 4096) -> None:
        rows: list[tuple[list[int], int]] = []
        while len(rows) < count:
            ids, start = self.encode(draw(self.r, weights=self.weights))
            if len(ids) + GRID <= self.max_length:
                rows.append((ids, start))
        rows.sort(key=lambda row: (row[1] // 32, len(row[0])))  # rows of like length share a batch
        batches, batch = [], []
        for row in rows:
            if batch and on_grid(len(row[0])) * (len(batch) + 1) > self.tokens_per_batch:
                batches.append(batch)
                batch = []
            batch.append(row)
        self.r.shuffle(batches)
        self.ready = batches

    def __next__(self) -> tuple[Tensor, Tensor, Tensor]:
        if not self.ready:
            self.refill()
        rows = self.ready.pop()
        ids = torch.full((len(rows), on_grid(max(len(row) for row, _ in rows))), self.pad)
        for k, (row, _) in enumerate(rows):
            ids[k, : len(row)] = torch.tensor(row)
        start = torch.tensor([start for _, start in rows])
        # the model also learns to fill the rest of the last block with end-of-text
        end = torch.tensor([on_grid(len(row)) for row, _ in rows])
        return ids, start, end


def on_grid(length: int) -> int:
    return (length + GRID - 1) // GRID * GRID


def diffusion_mask(length: int, first: int, block: int) -> Tensor:
    """Who sees whom among [noisy first..length-1 | clean 0..length-1]: bool [rows, rows].

    A noisy block sees itself and the clean blocks before it; a clean block sees the clean blocks up to itself.
    """
    clean = torch.arange(length) // block
    noisy = clean[first:]
    top = torch.cat((noisy[:, None] == noisy[None, :], noisy[:, None] > clean[None, :]), 1)
    nothing = torch.zeros(length, length - first, dtype=torch.bool)
    bottom = torch.cat((nothing, clean[:, None] >= clean[None, :]), 1)
    return torch.cat((top, bottom), 0)


def noise(
    ids: Tensor, start: Tensor, end: Tensor, block: int, mask_id: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Masks in each block a uniformly drawn number (1..block) of answer tokens. Returns (noisy ids, masked), [N, L]."""
    n, length = ids.shape
    at = torch.arange(length)
    answer = (at >= start[:, None]) & (at < end[:, None])
    rank = torch.rand(n, length // block, block, generator=generator)
    rank = rank.masked_fill(~answer.view(n, -1, block), 2.0).argsort(-1).argsort(-1)
    count = answer.view(n, -1, block).sum(-1)
    chosen = (torch.rand(count.shape, generator=generator) * count).floor() + 1
    masked = (rank < chosen[..., None]).view(n, length) & answer
    return ids.masked_fill(masked, mask_id), masked
