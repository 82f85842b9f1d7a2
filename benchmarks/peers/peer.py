"""A peer: a process of its own that answers prompts, one JSON line for another.

It says {"ready": true} once its model is loaded. Then each line

    {"number": 3, "ids": [...], "prompt": text, "max_tokens": n}

on its standard input is answered with one line, {"number": 3, "ids": [...]} or {"number": 3, "text": "..."}, of what
comes after the prompt, or with {"number": 3, "error": "..."}. The number is the question's: a line that answers another
one is no answer, and whoever prints it is out. Lines that do not begin with "{" are passed over, so that a program may
print what it likes.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import queue
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ADAPTER = Path(__file__).with_name("adapter.py")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
TAIL = 400  # characters of a failed peer's last words
LEAVING = 2.0  # seconds that a process takes at most between closing its output and its end


class PeerError(Exception):
    """A peer that did not start, died, was too slow, or answered what was not asked."""


@dataclass(frozen=True)
class Spec:
    """How a peer is started."""

    name: str
    command: Sequence[str]

    @classmethod
    def of_command(cls, text: str) -> Spec:
        """From `NAME=COMMAND WORD ...`. Raises argparse.ArgumentTypeError."""
        name, rest = _named(text)
        return cls(name, rest)

    @classmethod
    def of_callable(cls, text: str) -> Spec:
        """From `NAME=FILE.py:FUNCTION KEY=VALUE ...`; a module's dotted name does for a file. Raises likewise."""
        name, (where, *options) = _named(text)
        if not where.rpartition(":")[0] or any("=" not in option for option in options):
            raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=FILE.py:FUNCTION KEY=VALUE ...")
        return cls(name, [sys.executable, str(ADAPTER), where, *options])


def _named(text: str) -> tuple[str, list[str]]:
    name, _, rest = text.partition("=")
    try:
        words = shlex.split(rest)
    except ValueError as error:  # an open quote
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    if not name or not words:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=...")
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
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
        environment = os.environ | dict.fromkeys(THREADS, str(threads))
        try:
            self._process = subprocess.Popen(
                list(spec.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                bufsize=0,
                env=environment,
            )
        except OSError as error:
            self._words.close()
            raise PeerError(f"{spec.name} cannot be started: {error}") from error
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)  # a peer that does not read holds nobody up
        self._asked = 0
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._other = ""  # the newest line that is no answer
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it at once; again is nothing."""
        self._process.kill()
        self._process.wait()
        self._words.close()

    def wait(self, timeout: float) -> None:
        """Until it is ready. Raises PeerError."""
        if self._read(time.perf_counter() + timeout, timeout).get("ready") is not True:
            raise PeerError(f"{self.spec.name} did not say that it is ready, as its first line")

    def ask(self, ids: Sequence[int], prompt: str, max_tokens: int, timeout: float) -> Answer:
        """Raises PeerError; a peer that raised it is of no more use."""
        self.check_silent()
        self._asked += 1
        asked = {"number": self._asked, "ids": list(ids), "prompt": prompt, "max_tokens": max_tokens}
        line = (json.dumps(asked) + "\n").encode()
        begin = time.perf_counter()
        self._write(line, begin + timeout, timeout)
        found = self._read(begin + timeout, timeout)
        seconds = time.perf_counter() - begin
        if found.get("number") != self._asked:
            raise PeerError(f'{self.spec.name}: no "number": {self._asked}, the question\'s, in {str(found)[:TAIL]}')
        ids_found, text = found.get("ids"), found.get("text")
        if isinstance(ids_found, list) and all(type(i) is int for i in ids_found):
            return Answer(ids_found, None, seconds)
        if isinstance(text, str):
            return Answer(None, text.encode("utf-8", "replace").decode(), seconds)
        wrong = f"neither a list of whole numbers as ids nor a text in {str(found)[:TAIL]}"
        raise PeerError(f"{self.spec.name}: {found.get('error', wrong)}")

    def check_silent(self) -> None:
        """That it says nothing while it is not asked: it would answer the next question before it was put.

        Raises PeerError.
        """
        with suppress(queue.Empty):
            line = self._lines.get_nowait()
            if line is None:
                raise self._gone()
            raise PeerError(f"{self.spec.name} printed a line that nobody asked for: {line.strip()[:TAIL]}")

    def _write(self, line: bytes, deadline: float, timeout: float) -> None:
        assert self._process.stdin is not None
        pipe = self._process.stdin.fileno()
        while line:
            if not select.select([], [pipe], [], max(0.0, deadline - time.perf_counter()))[1]:
                raise PeerError(f"{self.spec.name} did not read its question within {timeout:g} s")
            try:
                line = line[os.write(pipe, line) :]
            except BlockingIOError:  # less room than a pipe promises to be filled at once
                time.sleep(0.001)
            except OSError as error:
                raise self._gone() from error

    def _read(self, deadline: float, timeout: float) -> Mapping[str, Any]:
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.perf_counter()))
        except queue.Empty:
            other = f"; it printed {self._other[:TAIL]!r}" if self._other else ""
            raise PeerError(f"{self.spec.name} did not answer within {timeout:g} s{other}") from None
        if line is None:
            raise self._gone()
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PeerError(f"{self.spec.name} answered what is not JSON: {line[:TAIL]!r}") from error

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in io.TextIOWrapper(self._process.stdout, "utf-8", "replace"):
            if line.lstrip().startswith("{"):
                self._lines.put(line)
            elif line.strip():
                self._other = line.strip()
        self._lines.put(None)

    def _gone(self) -> PeerError:
        """Its input or output is closed."""
        try:
            status = self._process.wait(LEAVING)
        except subprocess.TimeoutExpired:
            return PeerError(f"{self.spec.name} has closed its input or output, and answers no more")
        self._words.seek(0)
        said = self._words.read().decode("utf-8", "replace").strip()
        words = f"; its last words: {said.splitlines()[-1][-TAIL:]}" if said else " without a word"
        by = f" by {signal.Signals(-status).name}" if status < 0 else f" with exit status {status}"
        return PeerError(f"{self.spec.name} has ended{by}{words}")
