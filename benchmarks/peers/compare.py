"""Times any programs that decode the same checkpoint: same prompts, same machine, one run.

    python -m benchmarks.peers.compare --suite math --limit 20 \\
        --callable "ordinary=benchmarks/peers/ours.py:load method=none" \\
        --callable "exact=benchmarks/peers/ours.py:load method=exact" \\
        --callable "theirs=their_adapter.py:load block_length=4" \\
        --command  "other=./their_program --checkpoint path/to/checkpoint"

Each peer is a process of its own that loads its model before the clock starts (peer.py says how it is spoken to). They
take turns, prompt by prompt, one at a time, so that a change of the machine's pace meets all alike. No prompt is asked
twice: each repeat has prompts of its own, and some are asked beforehand, untimed, so that who remembers answers gains
nothing by it. Tokens are counted the same way for all: ids up to the first stop id. Ratios are to the first peer,
repeat by repeat. A peer that dies, is too slow or answers what was not asked is out; the others go on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.arguments import positive, seconds
from benchmarks.peers.peer import Answer, Peer, PeerError, Spec
from simsd.benchmark.device import device_name
from simsd.benchmark.workload import Item, load_items, prompt_of
from simsd.errors import ConfigError, SimsdError
from simsd.evaluation.statistics import Spread
from simsd.evaluation.suites import SUITES
from simsd.models.config import ModelConfig
from simsd.models.loader import resolve
from simsd.models.tokenizer import Tokenizer
from simsd.progress import track

ECHO = 8  # tokens of a prompt that no answer repeats by chance


@dataclass(frozen=True)
class Question:
    prompt: str
    ids: list[int]


@dataclass
class Result:
    """What a peer did. seconds and tokens: one for each repeat; texts: of all repeats."""

    name: str
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)
    failure: str | None = None

    def count(self, repeat: int, ids: list[int], seconds: float) -> None:
        """Adds an answer."""
        self.seconds[repeat] += seconds
        self.tokens[repeat] += len(ids)
        self.texts.append(ids)

    def to_dict(self, base: Result) -> dict[str, Any]:
        """With what it comes to beside `base`, where neither failed: the ratio of tokens a second, and the share of
        equal texts."""
        row: dict[str, Any] = {"peer": self.name, "failure": self.failure}
        row |= dict.fromkeys(("tokens", "tokens_per_second", "ratio", "same"))
        if self.failure is not None:
            return row
        speeds = self._speeds()
        row |= {"tokens": sum(self.tokens), "tokens_per_second": vars(Spread.of(speeds))}
        if base.failure is None:
            ratios = [mine / other for mine, other in zip(speeds, base._speeds(), strict=True) if other]
            same = sum(mine == other for mine, other in zip(self.texts, base.texts, strict=True))
            row |= {"ratio": vars(Spread.of(ratios)) if ratios else None, "same": same / len(self.texts)}
        return row

    def _speeds(self) -> list[float]:
        return [tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds, strict=True)]


@dataclass(frozen=True)
class Asked:
    """No question twice. first: untimed; repeats: those of each repeat."""

    first: list[Question]
    repeats: list[list[Question]]


def questions(tokenizer: Tokenizer, names: Sequence[str], limit: int, repeats: int) -> Asked:
    """The prompts as every peer gets them: text, and its ids. Of each suite `limit` a repeat, and one beforehand.

    Raises: ConfigError, also where a suite has too few.
    """
    need, known = limit * repeats + 1, set[tuple[int, ...]]()
    asked = Asked([], [[] for _ in range(repeats)])
    for name in names:
        items = (_question(tokenizer, item) for item in load_items([name]))
        own: list[Question] = []
        while len(own) < need and (question := next(items, None)) is not None:
            if tuple(question.ids) not in known:
                known.add(tuple(question.ids))
                own.append(question)
        if len(own) < need:
            raise ConfigError(
                f"{name} has {len(own)} prompts that differ from all others, and {limit} for each of {repeats} repeats "
                f"and one beforehand are {need}: none is asked twice; give a smaller --limit or fewer --repeats"
            )
        asked.first.append(own[0])
        for repeat, part in enumerate(asked.repeats):
            part += own[1 + repeat * limit : 1 + (repeat + 1) * limit]
    return asked


def _question(tokenizer: Tokenizer, item: Item) -> Question:
    prompt = prompt_of(tokenizer, item)
    if isinstance(prompt, str):
        return Question(prompt, tokenizer.encode(prompt))
    return Question(tokenizer.render_chat(cast("Any", item.prompt)), prompt)


def counted(answer: Answer, tokenizer: Tokenizer, stop_ids: Sequence[int], max_tokens: int) -> list[int]:
    """The answer's tokens up to the first stop id, which some give, and not more than were asked for."""
    ids = answer.ids
    if ids is None:
        ids = tokenizer.encode(answer.text or "", add_special_tokens=False)
    end = next((at for at, token in enumerate(ids) if token in stop_ids), len(ids))
    return list(ids[: min(end, max_tokens)])


def check(name: str, answer: Answer, question: Question, tokenizer: Tokenizer) -> None:
    """That the ids are those of what comes after the prompt. Raises PeerError."""
    if answer.ids is None:
        return
    foreign = [token for token in answer.ids if not 0 <= token < tokenizer.vocab_size]
    if foreign:
        raise PeerError(f"{name} answered {foreign[0]}, which is no token of the checkpoint")
    if len(question.ids) >= ECHO and answer.ids[: len(question.ids)] == question.ids:
        raise PeerError(f"{name} answered with the prompt in front; only what comes after it is asked for")


def compare(
    specs: Sequence[Spec],
    asked: Asked,
    tokenizer: Tokenizer,
    stop_ids: Sequence[int],
    *,
    max_tokens: int,
    threads: int,
    timeout: float,
    progress: bool,
) -> list[Result]:
    """Runs all peers side by side; a result each, in their order."""
    repeats = len(asked.repeats)
    results = [Result(spec.name, [0.0] * repeats, [0] * repeats) for spec in specs]
    turns = len(specs) * (len(asked.first) + sum(map(len, asked.repeats)))
    with ExitStack() as stack, track("Comparing", turns, progress) as advance:
        running: dict[int, Peer] = {}

        @contextmanager
        def attempt(at: int) -> Iterator[None]:
            """A peer that fails in it is out."""
            try:
                yield
            except PeerError as error:
                results[at].failure = str(error)
                if at in running:
                    running.pop(at).close()  # it would slow the others down

        def turn(question: Question, repeat: int | None = None) -> None:
            """Asks all that still run, one after the other; what they answer counts in that repeat."""
            for at, result in enumerate(results):
                advance(1)
                if at not in running:
                    continue
                with attempt(at):
                    answer = running[at].ask(question.ids, question.prompt, max_tokens, timeout)
                    check(result.name, answer, question, tokenizer)
                    if repeat is not None:
                        result.count(repeat, counted(answer, tokenizer, stop_ids, max_tokens), answer.seconds)

        for at, spec in enumerate(specs):
            with attempt(at):
                running[at] = stack.enter_context(Peer(spec, threads))
                running[at].wait(timeout)
        for question in asked.first:
            turn(question)
        for repeat, part in enumerate(asked.repeats):
            for question in part:
                turn(question, repeat)
        for at, peer in list(running.items()):
            with attempt(at):
                peer.check_silent()
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
    parser.add_argument("--limit", type=positive, default=8, help="questions of each suite in a repeat")
    parser.add_argument("--max-tokens", type=positive, default=128)
    parser.add_argument("--repeats", type=positive, default=3, help="each with questions of its own")
    parser.add_argument("--threads", type=positive, default=1, help="of each peer, as OMP_NUM_THREADS and its kin")
    parser.add_argument("--timeout", type=seconds, default=600.0, help="seconds for loading, and for an answer")
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
        asked = questions(tokenizer, list(dict.fromkeys(args.suite)), args.limit, args.repeats)
    except SimsdError as error:
        parser.error(str(error))
    settings = {name: getattr(args, name) for name in ("max_tokens", "threads", "timeout")}
    results = compare(args.peers, asked, tokenizer, config.stop_token_ids, **settings, progress=sys.stderr.isatty())
    rows = [result.to_dict(results[0]) for result in results]
    if args.json:
        size = {"questions": len(asked.repeats[0]), "repeats": args.repeats, "suites": args.suite}
        about = {"device": device_name(torch.device("cpu")), **size, **settings}
        print(json.dumps({"about": about, "peers": rows}, indent=1))
    else:
        show(rows)
    return 1 if any(row["failure"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
