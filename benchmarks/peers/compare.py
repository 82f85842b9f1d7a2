"""Times any programs that decode the same checkpoint: same prompts, same machine, one run.

    python -m benchmarks.peers.compare --suite math --limit 20 \\
        --callable "ordinary=benchmarks/peers/ours.py:load method=none" \\
        --callable "exact=benchmarks/peers/ours.py:load method=exact" \\
        --callable "theirs=their_adapter.py:load block_length=4" \\
        --command  "other=./their_program --checkpoint path/to/checkpoint"

Each peer is a process of its own that loads its model before the clock starts (peer.py says how it is spoken to). They
take turns, prompt by prompt, one at a time, so that a change of the machine's pace meets all alike; the first prompt is
asked once beforehand, untimed. Tokens are counted the same way for all: ids up to and with the first stop id. Ratios
are to the first peer, repeat by repeat. A peer that dies or is too slow is out; the others go on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.peers.peer import Answer, Peer, PeerError, Spec
from simsd.benchmark.device import device_name
from simsd.benchmark.workload import load_items, prompt_of
from simsd.errors import SimsdError
from simsd.evaluation.statistics import Spread
from simsd.evaluation.suites import SUITES
from simsd.models.config import ModelConfig
from simsd.models.loader import resolve
from simsd.models.tokenizer import Tokenizer
from simsd.progress import track


@dataclass(frozen=True)
class Question:
    prompt: str
    ids: list[int]


@dataclass
class Result:
    """What a peer did. seconds and tokens: one for each repeat; texts: of the first repeat."""

    name: str
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)
    failure: str | None = None

    def to_dict(self, base: Result) -> dict[str, Any]:
        """With what it comes to beside `base`, where neither failed: the ratio of tokens a second, and the share of
        equal texts."""
        row: dict[str, Any] = {"peer": self.name, "failure": self.failure}
        row |= dict.fromkeys(("tokens", "tokens_per_second", "ratio", "same"))
        if self.failure is not None:
            return row
        speeds = self._speeds()
        row |= {"tokens": self.tokens[0], "tokens_per_second": vars(Spread.of(speeds))}
        if base.failure is None:
            ratios = [mine / other for mine, other in zip(speeds, base._speeds(), strict=True) if other]
            same = sum(mine == other for mine, other in zip(self.texts, base.texts, strict=True))
            row |= {"ratio": vars(Spread.of(ratios)) if ratios else None, "same": same / len(self.texts)}
        return row

    def _speeds(self) -> list[float]:
        return [tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds, strict=True)]


def questions(tokenizer: Tokenizer, names: Sequence[str], limit: int | None) -> list[Question]:
    """The prompts as every peer gets them: text, and its ids."""
    found = []
    for item in load_items(names, limit):
        prompt = prompt_of(tokenizer, item)
        if isinstance(prompt, str):
            found.append(Question(prompt, tokenizer.encode(prompt)))
        else:
            found.append(Question(tokenizer.render_chat(cast("Any", item.prompt)), prompt))
    return found


def counted(answer: Answer, tokenizer: Tokenizer, stop_ids: Sequence[int], max_tokens: int) -> list[int]:
    """The answer's tokens up to and with the first stop id, and not more than were asked for."""
    ids = answer.ids
    if ids is None:
        ids = tokenizer.encode(answer.text or "", add_special_tokens=False)
    end = next((at + 1 for at, token in enumerate(ids) if token in stop_ids), len(ids))
    return list(ids[: min(end, max_tokens)])


def compare(
    specs: Sequence[Spec],
    asked: Sequence[Question],
    tokenizer: Tokenizer,
    stop_ids: Sequence[int],
    *,
    max_tokens: int,
    repeats: int,
    threads: int,
    timeout: float,
    progress: bool,
) -> list[Result]:
    """Runs all peers side by side; a result each, in their order."""
    results = [Result(spec.name, [0.0] * repeats, [0] * repeats) for spec in specs]
    with ExitStack() as stack, track("Comparing", (repeats * len(asked) + 1) * len(specs), progress) as advance:
        running: dict[int, Peer] = {}

        def attempt(at: int, question: Question) -> Answer | None:
            """The answer of a peer that still runs. One that fails is out."""
            advance(1)
            if at not in running:
                return None
            try:
                return running[at].ask(question.ids, question.prompt, max_tokens, timeout)
            except PeerError as error:
                results[at].failure = str(error)
                del running[at]
                return None

        for at, spec in enumerate(specs):
            try:
                peer = stack.enter_context(Peer(spec, threads))
                peer.wait(timeout)
                running[at] = peer
            except PeerError as error:
                results[at].failure = str(error)
        for at in range(len(specs)):
            attempt(at, asked[0])
        for repeat in range(repeats):
            for question in asked:
                for at, result in enumerate(results):
                    answer = attempt(at, question)
                    if answer is None:
                        continue
                    ids = counted(answer, tokenizer, stop_ids, max_tokens)
                    result.seconds[repeat] += answer.seconds
                    result.tokens[repeat] += len(ids)
                    if repeat == 0:
                        result.texts.append(ids)
    return results


def show(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(title=f"tokens a second, and their ratio to {rows[0]['peer']}", title_justify="left")
    for name in ("peer", "tokens/s", "ratio", "from", "to", "same text"):
        table.add_column(name, justify="left" if name == "peer" else "right")
    for row in rows:
        ratio, speed = row["ratio"], row["tokens_per_second"]
        figures = ["-"] * 3 if ratio is None else [f"{ratio[name]:.2f}" for name in ("median", "low", "high")]
        same = "-" if row["same"] is None else f"{row['same']:.0%}"
        table.add_row(row["peer"], "-" if speed is None else f"{speed['median']:.0f}", *figures, same)
    console = Console(soft_wrap=not sys.stdout.isatty())
    console.print(table)
    for row in rows:
        if row["failure"]:
            console.print(row["failure"], style="red", markup=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, of in (("--callable", Spec.of_callable), ("--command", Spec.of_command)):
        parser.add_argument(flag, dest="peers", action="append", type=of, metavar="NAME=...", help="a peer; see above")
    parser.add_argument("--model", default="tiny", help="the checkpoint whose tokenizer and stop ids are used")
    parser.add_argument("--suite", nargs="+", default=list(SUITES), help="suites or JSON Lines files of prompts")
    parser.add_argument("--limit", type=int, default=8, help="questions of each suite")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of each peer, as OMP_NUM_THREADS and its kin")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for loading, and for an answer")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    if not args.peers:
        parser.error("no peer is named; give --callable or --command")
    if len({spec.name for spec in args.peers}) < len(args.peers):
        parser.error("two peers have the same name")
    try:
        folder = resolve(args.model)
        config = ModelConfig.from_folder(folder)
        tokenizer = Tokenizer.from_folder(folder, config.mask_token_id)
        asked = questions(tokenizer, args.suite, args.limit)
    except SimsdError as error:
        parser.error(str(error))
    settings = {name: getattr(args, name) for name in ("max_tokens", "repeats", "threads", "timeout")}
    results = compare(args.peers, asked, tokenizer, config.stop_token_ids, **settings, progress=sys.stderr.isatty())
    rows = [result.to_dict(results[0]) for result in results]
    if args.json:
        about = {"device": device_name(torch.device("cpu")), "questions": len(asked), "suites": args.suite, **settings}
        print(json.dumps({"about": about, "peers": rows}, indent=1))
    else:
        show(rows)
    return 1 if any(row["failure"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
