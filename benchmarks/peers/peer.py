"""A peer: a process of its own that answers prompts, one JSON line for another.

It says {"ready": true} once its model is loaded. Then each line {"ids": [...], "prompt": text, "max_tokens": n} on its
standard input is answered with one line, {"ids": [...]} or {"text": "..."}, of what comes after the prompt, or with
{"error": "..."}. Lines that do not begin with "{" are passed over, so that a program may print what it likes.
"""

from __future__ import annotations

import json
import os
import queue
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ADAPTER = Path(__file__).with_name("adapter.py")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
TAIL = 400  # characters of a failed peer's last words


class PeerError(Exception):
    """A peer that did not start, died, was too slow, or answered with something else."""


@dataclass(frozen=True)
class Spec:
    """How a peer is started."""

    name: str
    command: Sequence[str]

    @classmethod
    def of_command(cls, text: str) -> Spec:
        """From `NAME=COMMAND WORD ...`. Raises ValueError."""
        name, rest = _named(text)
        return cls(name, rest)

    @classmethod
    def of_callable(cls, text: str) -> Spec:
        """From `NAME=FILE.py:FUNCTION KEY=VALUE ...`; a module's dotted name does for a file. Raises ValueError."""
        name, (where, *options) = _named(text)
        if not where.rpartition(":")[0] or any("=" not in option for option in options):
            raise ValueError(f"{text!r} is not of the form NAME=FILE.py:FUNCTION KEY=VALUE ...")
        return cls(name, [sys.executable, str(ADAPTER), where, *options])


def _named(text: str) -> tuple[str, list[str]]:
    name, _, rest = text.partition("=")
    words = shlex.split(rest)
    if not name or not words:
        raise ValueError(f"{text!r} is not of the form NAME=...")
    return name, words


@dataclass(frozen=True)
class Answer:
    """ids or text, whichever the peer gave; seconds from the line sent to the line received."""

    ids: list[int] | None
    text: str | None
    seconds: float


class Peer:
    """A running peer. Use as a context: it ends with it."""

    def __init__(self, spec: Spec, threads: int) -> None:
        self.spec = spec
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        environment = os.environ | dict.fromkeys(THREADS, str(threads))
        try:
            self._process = subprocess.Popen(
                list(spec.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                text=True,
                encoding="utf-8",
                env=environment,
            )
        except OSError as error:
            self._words.close()
            raise PeerError(f"{spec.name} cannot be started: {error}") from error
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._words.close()

    def wait(self, timeout: float) -> None:
        """Until it is ready. Raises PeerError."""
        if "ready" not in self._read(timeout):
            raise PeerError(f"{self.spec.name} did not say that it is ready, as its first line")

    def ask(self, ids: Sequence[int], prompt: str, max_tokens: int, timeout: float) -> Answer:
        """Raises PeerError; a peer that was too slow is of no more use."""
        line = json.dumps({"ids": list(ids), "prompt": prompt, "max_tokens": max_tokens}) + "\n"
        begin = time.perf_counter()
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except OSError as error:
            raise PeerError(f"{self.spec.name} has ended{self._last_words()}") from error
        found = self._read(timeout)
        seconds = time.perf_counter() - begin
        ids_found, text = found.get("ids"), found.get("text")
        if isinstance(ids_found, list) and all(type(i) is int for i in ids_found):
            return Answer(ids_found, None, seconds)
        if isinstance(text, str):
            return Answer(None, text, seconds)
        raise PeerError(f"{self.spec.name}: {found.get('error', f'neither ids nor text in {str(found)[:TAIL]}')}")

    def _read(self, timeout: float) -> Mapping[str, Any]:
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise PeerError(f"{self.spec.name} did not answer within {timeout:g} s") from None
        if line is None:
            raise PeerError(f"{self.spec.name} has ended{self._last_words()}")
        try:
            return json.loads(line)
        except ValueError as error:
            raise PeerError(f"{self.spec.name} answered what is not JSON: {line[:TAIL]!r}") from error

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.lstrip().startswith("{"):
                self._lines.put(line)
        self._lines.put(None)

    def _last_words(self) -> str:
        self._process.wait(timeout=10)
        self._words.seek(0)
        said = self._words.read().decode("utf-8", "replace").strip()
        return f"; its last words: {said.splitlines()[-1][-TAIL:]}" if said else " without a word"
