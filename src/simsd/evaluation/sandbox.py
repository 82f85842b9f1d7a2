"""Runs generated code against its asserts in a separate, limited process.

A guard rail, not a security boundary: it stops what a language model writes by accident (endless loops, memory
floods, deleted files, stray processes), and code made to break out will find a way. Grade hostile code in a
container or a virtual machine.

That a program passed is decided outside the interpreter that it runs in: leaving early, the garbage collector, tracing,
rebinding builtins, and whatever a frame reaches give no pass. It may still answer its tests dishonestly: with objects
that equal everything, by names of its own for what the tests call, or with what it reads in the frame of the test that
called it. Native code could do anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from simsd.errors import ConfigError, SimsdError
from simsd.evaluation import clearing

_CHILD = Path(__file__).with_name("sandbox_child.py")
_GUARD = Path(__file__).with_name("sandbox_guard.py")


@dataclass(frozen=True)
class Limits:
    """What the process may use: seconds of CPU and of wall clock, bytes of memory and of each file, report length.

    entries: how many folders it may make and how often it may open a file for writing; removing them takes time too.
    """

    cpu_seconds: int = 5
    wall_seconds: float = 10.0
    memory_bytes: int = 512 << 20
    file_bytes: int = 1 << 20
    report_bytes: int = 1 << 16
    entries: int = 1000

    def __post_init__(self) -> None:
        if min(asdict(self).values()) <= 0:
            raise ConfigError(f"every limit must be positive: {self}")


@dataclass(frozen=True)
class Outcome:
    """`passed` only if every assert ran and held; `reason` says what happened, in words."""

    passed: bool
    reason: str


def run_tests(code: str, tests: Sequence[str], limits: Limits | None = None) -> Outcome:
    """Executes `code`, then each of `tests`, in a process of its own: standard library only, empty environment,
    temporary working folder, no network, no other process, no writing outside that folder, output thrown away.

    What of the folder cannot be removed is told in a warning.

    Raises SimsdError where the limits do not exist (Windows) and when the process cannot be started.
    """
    if os.name != "posix":
        raise SimsdError("running generated code needs the process limits of Linux or macOS: grade code there")
    limits = limits or Limits()
    # The child proves that it came to the end by repeating this word: leaving early with exit code 0 proves nothing.
    proof = secrets.token_hex(16)
    try:
        folder = tempfile.mkdtemp(prefix="simsd-")
    except OSError as error:
        raise SimsdError(f"there is no place for a working folder ({error.strerror}): set TMPDIR to one") from error
    try:
        request = {
            "code": code,
            "tests": list(tests),
            "proof": proof,
            "guard": _GUARD.read_text("utf-8"),
            "folder": os.path.realpath(folder),
            "cpu_seconds": limits.cpu_seconds,
            "memory_bytes": limits.memory_bytes,
            "file_bytes": limits.file_bytes,
            "entries": limits.entries,
        }
        report, ending = _run(json.dumps(request).encode(), folder, limits)
    finally:
        if (left := clearing.remove(folder)) is not None:
            warnings.warn(left, stacklevel=2)
    return _outcome(report, ending, proof)


def _run(request: bytes, folder: str, limits: Limits) -> tuple[bytes, str]:
    """What the child reported, and how it came to its end."""
    child = _start(folder)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(request)
            child.stdin.close()
        return _read(child.stdout.fileno(), limits)
    finally:
        _end(child)


def _start(folder: str) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"TMPDIR": folder},
            start_new_session=True,  # its own process group, so that all of it can be ended
        )
    except OSError as error:
        raise SimsdError(f"the process for generated code did not start ({error.strerror or error})") from error


def _read(pipe: int, limits: Limits) -> tuple[bytes, str]:
    report = b""
    deadline = time.monotonic() + limits.wall_seconds
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while len(report) <= limits.report_bytes:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return report, f"stopped after {limits.wall_seconds:g} seconds"
            piece = os.read(pipe, 4096)
            if not piece:
                return report, "ended before the last test (exit, crash, or a CPU or memory limit)"
            report += piece
    return report, "wrote too much"


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # already gone
        os.killpg(child.pid, signal.SIGKILL)
    for stream in (child.stdin, child.stdout):
        if stream is not None and not stream.closed:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    child.wait()


def _outcome(report: bytes, ending: str, proof: str) -> Outcome:
    started, ready, words = report.partition(b"ready\n")
    if not ready or started:  # a fault of the machine must not count as a wrong answer
        raise SimsdError(
            f"the process for generated code did not start ({ending}): check {sys.executable} and the load"
        )
    if words == proof.encode():
        return Outcome(True, "passed")
    if ending == "wrote too much":
        return Outcome(False, ending)
    return Outcome(False, words.decode("utf-8", "replace").strip() or ending)
