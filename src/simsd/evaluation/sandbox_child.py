"""The process that runs generated code. Started by path in isolated mode: it may import the standard library only.

The code and its tests run in an interpreter of their own inside the process (PEP 734's, before 3.13 by its older name).
That interpreter's frames, objects, modules and builtins are not those of this one, which decides: it starts each test
itself, sees from C whether it ended without an exception, and alone knows the proof.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import sys
from importlib import import_module
from typing import Any

SETUP = """
import builtins, sys
private = {{"__builtins__": dict(vars(builtins)), "__name__": "guard"}}
exec(compile({guard!r}, "guard", "exec"), private)
private["guard"]({folder!r}, {entries})
sys.modules["solution"] = sys.modules["__main__"]
__name__ = "solution"
__builtins__ = dict(vars(builtins))  # the tests' own: the code may rebind the others
del builtins, private, sys
"""


def limit(request: dict[str, Any]) -> None:
    """Hard limits of the operating system; one that it does not know (memory on macOS) is left out."""
    for name, value in (
        ("RLIMIT_CPU", request["cpu_seconds"]),
        ("RLIMIT_AS", request["memory_bytes"]),
        ("RLIMIT_FSIZE", request["file_bytes"]),
        ("RLIMIT_NOFILE", 64),
        ("RLIMIT_NPROC", 0),
        ("RLIMIT_CORE", 0),
    ):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            resource.setrlimit(getattr(resource, name), (value, value))


def interpreter(guard: str, folder: str, entries: int) -> tuple[Any, Any]:
    """`run_string` and a guarded interpreter for it. No module that leads to either stays behind."""
    try:
        module = import_module("_interpreters")
        own = module.create("legacy")  # every module of the standard library can be imported
    except ImportError:
        module = import_module("_xxsubinterpreters")
        own = module.create(isolated=False)
    run_string = module.run_string
    if (problem := run_string(own, SETUP.format(guard=guard, folder=folder, entries=entries))) is not None:
        raise RuntimeError(reason(problem))
    del sys.modules[module.__name__]
    return run_string, own


def reason(problem: Any) -> str:
    """The type and message of what `run_string` raised (until 3.12) or returned (from 3.13)."""
    if hasattr(problem, "formatted"):
        return f"{problem.type.__name__}: {problem.msg or ''}"[:500]
    kind, _, said = str(problem).partition(": ")
    if type(problem).__name__ != "RunFailedError":  # raised here: text that is no source, no memory
        return f"{type(problem).__name__}: {problem}"[:500]
    return f"{kind.removeprefix('<class ').strip(chr(39) + '>').rpartition('.')[2]}: {said}"[:500]


def main() -> None:
    request = json.loads(sys.stdin.buffer.read())
    report = os.dup(1)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    gc.disable()
    limit(request)
    run_string, own = interpreter(request["guard"], request["folder"], request["entries"])
    sources = (request["code"], *request["tests"])
    proof = request.pop("proof").encode()
    write, leave = os.write, os._exit
    write(report, b"ready\n")
    # From here to the proof only these locals and functions in C: until 3.11 the other interpreter can find classes of
    # this one (object.__subclasses__), by them its modules, and rebind what those hold.
    at = -1
    try:
        for source in sources:
            at += 1
            problem = run_string(own, source)
            if problem is not None:
                break
        else:
            write(report, proof)
            leave(0)
    except:  # noqa: E722
        problem = sys.exc_info()[1]
    proof = b""  # before anything else runs
    write(report, f"{f'test {at}' if at else 'the program'}: {reason(problem)}".encode("utf-8", "replace"))
    leave(0)


if __name__ == "__main__":
    main()
