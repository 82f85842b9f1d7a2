"""Trains one model of the pair: first left to right, then as a block-diffusion model.

    python -m training.train tokenizer OUT                    the tokenizer, once
    python -m training.train target OUT --minutes 80          the target (8 layers)
    python -m training.train draft  OUT --minutes 20          the draft  (2 layers)
    python -m training.train target OUT --resume --ar-share 0 --lr 0.006 --more choice --minutes 16

The second stage is SDAR's: a noisy copy and a clean copy of each answer run in one pass; a noisy block sees itself and
the clean blocks before it, and predicts its masked tokens. The block length is drawn anew for each batch, so that one
model serves lengths 4, 8 and 16.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from training.data import GRID, Stream, diffusion_mask, noise
from training.model import SDAR, Config
from training.skills import WEIGHTS
from training.tokenizer import END, END_OF_TEXT, MASK, make_tokenizer, special_id

BLOCKS = (4, 8, 16)
SIZES = {
    "target": Config(hidden_size=256, intermediate_size=704, num_hidden_layers=8),
    "draft": Config(hidden_size=160, intermediate_size=448, num_hidden_layers=2, head_dim=40),
}
Hidden = Callable[[Tensor, Tensor, Tensor | None], Tensor]
Batch = tuple[Tensor, Tensor, Tensor]


def left_to_right_loss(model: SDAR, hidden: Hidden, batch: Batch) -> tuple[Tensor, float]:
    """Next-token loss, the question's tokens at a fifth of the weight. Also the mean loss of the answers alone."""
    ids, start, end = batch
    h = hidden(ids[:, :-1], torch.arange(ids.shape[1] - 1), None)
    at = torch.arange(1, ids.shape[1])
    keep = at < end[:, None]
    weight = torch.where(at >= start[:, None], 1.0, 0.2)[keep]
    each = F.cross_entropy(model.head(h[keep]).float(), ids[:, 1:][keep], reduction="none")
    return (each * weight).sum() / weight.sum(), each[weight == 1].mean().item()


def diffusion_loss(
    model: SDAR, hidden: Hidden, batch: Batch, block: int, mask_id: int, generator: torch.Generator
) -> Tensor:
    """Loss of the masked tokens given their noisy block and the clean blocks before it."""
    ids, start, end = batch
    noisy, masked = noise(ids, start, end, block, mask_id, generator)
    length = ids.shape[1]
    first = int(start.min()) // GRID * GRID  # no answer starts before this position
    positions = torch.cat((torch.arange(first, length), torch.arange(length)))
    h = hidden(torch.cat((noisy[:, first:], ids), 1), positions, diffusion_mask(length, first, block))
    h = h[:, : length - first]
    return F.cross_entropy(model.head(h[masked[:, first:]]).float(), ids[masked])


def learning_rate_scale(part: float, ar_share: float) -> float:
    """Share of the peak rate when `part` of the run is over; each stage warms up shortly, then falls."""
    if part < ar_share:
        inside, floor = part / ar_share, 0.4
    else:
        inside, floor = (part - ar_share) / (1 - ar_share), 0.02
    return min(1.0, inside / 0.03 + 0.01) * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * inside)))


def make_optimizers(model: SDAR, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the embedding and the norms."""
    named = list(model.named_parameters())
    inner = [p for name, p in named if p.dim() == 2 and ".layers." in name]
    outer = [p for name, p in named if p.dim() < 2 or ".layers." not in name]
    return [
        torch.optim.Muon(inner, lr=rate, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(outer, lr=rate / 5, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def favour(skill: str | None) -> dict[str, float]:
    """The skills' shares; a named skill gets half of all samples."""
    if skill is None:
        return WEIGHTS
    rest = 1 - WEIGHTS[skill]
    return {name: weight / rest / 2 for name, weight in WEIGHTS.items() if name != skill} | {skill: 0.5}


class Progress:
    """Which part of the run is over (by time, or by steps), and a line about it every 30 seconds."""

    def __init__(self, minutes: float, steps: int | None) -> None:
        self.seconds, self.steps = minutes * 60, steps
        self.begin = time.time()
        self.step = self.tokens = 0
        self.average: dict[str, float] = {}
        self.shown = 0.0

    @property
    def part(self) -> float:
        if self.steps is not None:
            return self.step / self.steps
        return (time.time() - self.begin) / self.seconds

    def count(self, tokens: int, key: str, loss: float) -> bool:
        """True when it is time to report and save."""
        self.step += 1
        self.tokens += tokens
        self.average[key] = 0.95 * self.average.get(key, loss) + 0.05 * loss
        if time.time() - self.shown < 30:
            return False
        self.shown = time.time()
        return True

    def line(self) -> str:
        spent = time.time() - self.begin
        losses = " ".join(f"{key} {value:.3f}" for key, value in self.average.items())
        return (
            f"{spent:6.0f}s step {self.step} {self.tokens / 1e6:.2f}M tokens {self.tokens / spent:.0f} tok/s {losses}"
        )


def train(args: argparse.Namespace) -> Progress:
    torch.manual_seed(args.seed)
    r = random.Random(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    mask_id, end_id, pad_id = (special_id(tokenizer, token) for token in (MASK, END, END_OF_TEXT))
    folder = args.out / args.what
    model = SDAR(SIZES[args.what])
    if args.resume:
        saved = load_file(folder / "model.safetensors")
        model.load_state_dict({name: value.float() for name, value in saved.items()}, strict=False)
    print(args.what, sum(p.numel() for p in model.parameters()) / 1e6, "M parameters", flush=True)
    optimizers = make_optimizers(model, args.lr)
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    hidden = model.hidden if args.eager else torch.compile(model.hidden, dynamic=True)
    stream = Stream(tokenizer, 1000 + args.seed, args.tokens, weights=favour(args.more))
    progress = Progress(args.minutes, args.steps)
    while (part := progress.part) < 1:
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * learning_rate_scale(part, args.ar_share)
        batch = next(stream)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if part < args.ar_share:
                key = "left-to-right"
                loss, shown = left_to_right_loss(model, hidden, batch)
            else:
                block = r.choice(BLOCKS)
                key = f"B={block}"
                loss = diffusion_loss(model, hidden, batch, block, mask_id, generator)
                shown = loss.item()
        update(model, optimizers, loss)
        if progress.count(batch[0].numel(), key, shown):
            print(progress.line(), flush=True)
            model.save(folder, 4, mask_id, end_id, pad_id)
    print(progress.line(), flush=True)
    model.save(folder, 4, mask_id, end_id, pad_id)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(args.out / name, folder / name)
    return progress


def update(model: SDAR, optimizers: list[torch.optim.Optimizer], loss: Tensor) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tokenizer", *SIZES])
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--steps", type=int, help="train for so many steps instead of --minutes")
    parser.add_argument("--ar-share", type=float, default=0.35, help="part of the run that trains left to right")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--tokens", type=int, default=2048, help="tokens a batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--resume", action="store_true", help="go on from the weights in OUT, usually with --ar-share 0"
    )
    parser.add_argument(
        "--more", metavar="SKILL", choices=list(WEIGHTS), help="draw this skill for half of all samples"
    )
    parser.add_argument("--eager", action="store_true", help="do not compile the model (short runs)")
    parser.add_argument("--samples", type=int, default=150_000, help="questions that the tokenizer is trained on")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    if args.what == "tokenizer":
        make_tokenizer(args.out, args.samples)
    else:
        train(args)


if __name__ == "__main__":
    main()
