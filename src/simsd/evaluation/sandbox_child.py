"""The process that runs generated code. Started by path in isolated mode: it may import the standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import types
from typing import Any

# Ways round the audit hook: foreign functions, processes and databases that open files in C.
BARRED_MODULES = frozenset(
    "_ctypes _ctypes_test _dbm _gdbm _interpreters _multiprocessing _posixshmem _posixsubprocess _socket _sqlite3 "
    "_testcapi _testinternalcapi _xxsubinterpreters readline".split()
)
BARRED_EVENTS = frozenset(
    "gc.get_objects gc.get_referents gc.get_referrers os.chdir os.chflags os.chmod os.chown os.exec os.fork os.forkpty "
    "os.kill os.killpg os.link os.lockf os.posix_spawn os.putenv os.removexattr os.setxattr os.spawn os.symlink "
    "os.system os.unsetenv pty.spawn resource.prlimit resource.setrlimit signal.pthread_kill subprocess.Popen".split()
)
BARRED_FAMILIES = ("ctypes.", "ftplib.", "http.", "imaplib.", "smtplib.", "socket.", "sqlite3.", "syslog.", "urllib.")
# Changes to the file system, with the number of paths that lead their arguments.
PATH_EVENTS = {
    "os.mkdir": 1,
    "os.remove": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.truncate": 1,
    "os.utime": 1,
}
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


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


def guard(folder: str) -> None:
    """From here on: no network, no other process, no change to a file outside `folder`."""
    realpath, fsdecode, join, isdir = os.path.realpath, os.fsdecode, os.path.join, os.path.isdir

    def inside(path: Any) -> bool:
        if isinstance(path, int):  # already open
            return True
        return (realpath(join(folder, fsdecode(path))) + os.sep).startswith(folder + os.sep)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in BARRED_EVENTS or event.startswith(BARRED_FAMILIES):
            raise PermissionError(f"{event} is not allowed here")
        if event == "import" and args[0] in BARRED_MODULES:
            raise ImportError(f"{args[0]} is not allowed here")
        if event == "open":
            path, mode, flags = args
            writes = any(c in mode for c in "wax+") if isinstance(mode, str) else bool((flags or 0) & WRITE_FLAGS)
            # A folder's descriptor would let later calls name files in it by paths that the hook does not see.
            if (writes or (mode is None and isdir(path))) and path != os.devnull and not inside(path):
                raise PermissionError(f"opening {path!r} so is not allowed here")
        elif event in PATH_EVENTS and not all(inside(path) for path in args[: PATH_EVENTS[event]]):
            raise PermissionError(f"{event} is not allowed outside the working folder")

    sys.addaudithook(hook)


def run(request: dict[str, Any]) -> str | None:
    """None if the code ran and every assert held, else what went wrong."""
    execute, translate = exec, compile  # kept: the program may rebind them
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    tests = [(f"test {i}", test) for i, test in enumerate(request["tests"], start=1)]
    for name, source in [("the program", request["code"]), *tests]:
        try:
            execute(translate(source, f"<{name}>", "exec"), module.__dict__)
        except BaseException as error:  # SystemExit too: leaving early is not passing
            return f"{name}: {type(error).__name__}: {str(error)[:500]}"
    return None


def main() -> None:
    write, leave = os.write, os._exit  # kept as well
    request = json.loads(sys.stdin.buffer.read())
    report = os.dup(1)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    limit(request)
    guard(request["folder"])
    proof = request.pop("proof").encode()
    write(report, b"ready\n")
    problem = run(request)
    write(report, proof if problem is None else problem.encode("utf-8", "replace"))
    leave(0)


if __name__ == "__main__":
    main()
