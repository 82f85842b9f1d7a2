"""Standard error as JSON lines, while Ray writes there what its processes say, each line behind the process's name."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_STDERR = 2
_LAST = 2.0  # seconds for what is still in the pipe at the end
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_OF_PROCESS = re.compile(r"\((?P<process>[^()]*)\) (?P<text>.*)")
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")


@contextmanager
def json_lines() -> Iterator[None]:
    """What is JSON stays what it is, with the process's name added; any other line becomes an event "output".

    It takes the file descriptor: some of Ray's warnings are not Python's.
    """
    sys.stderr.flush()
    came, goes, before = *os.pipe(), os.dup(_STDERR)
    os.dup2(goes, _STDERR)
    os.close(goes)
    reader = threading.Thread(target=_pass_on, args=(came, before), name="simsd-json-lines", daemon=True)
    reader.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, _STDERR)
        reader.join(_LAST)  # a process that still has the other end of the pipe must not keep this one


def _pass_on(came: int, goes: int) -> None:
    with os.fdopen(came, "rb") as lines, os.fdopen(goes, "wb", buffering=0) as out:
        for line in lines:
            if text := line.decode("utf-8", "replace").strip():
                out.write(f"{as_json(text)}\n".encode("utf-8", "replace"))


def as_json(line: str) -> str:
    """A line that may have a process's name before it, and colours, as one JSON object."""
    plain = _COLOUR.sub("", line)
    found = _OF_PROCESS.fullmatch(plain)
    text = found["text"] if found else plain
    fields = _object(text) or _output(text)
    if found:
        fields["process"] = found["process"]
    return json.dumps(fields, ensure_ascii=False)


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _output(text: str) -> dict[str, Any]:
    level = _LEVEL.search(text[:40])
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"time": now, "level": level[0] if level else "INFO", "event": "output", "text": text}
