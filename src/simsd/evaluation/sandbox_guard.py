"""The guard of an interpreter that runs generated code. Its source runs in there, in globals of its own.

One function without helpers, over immutable values and functions in C, with names that the code cannot rebind: what the
code patches (builtins, `os`, `posixpath`) does not change what it may do.
"""

from __future__ import annotations

import posix
import sys
from typing import Any

# Ways round the audit hook: foreign functions, processes, interpreters, and databases that open files in C.
BARRED_MODULES = frozenset(
    "_ctypes _ctypes_test _dbm _gdbm _interpchannels _interpqueues _interpreters _multiprocessing _posixshmem "
    "_posixsubprocess _socket _sqlite3 _testcapi _testinternalcapi _xxinterpchannels _xxsubinterpreters "
    "readline".split()
)
# What reaches frames and objects of others, or skips lines of a test, and what reaches beyond the process.
BARRED_EVENTS = frozenset(
    "gc.get_objects gc.get_referents gc.get_referrers os.chdir os.chflags os.chmod os.chown os.exec os.fork os.forkpty "
    "os.kill os.killpg os.link os.lockf os.posix_spawn os.putenv os.removexattr os.setxattr os.spawn os.symlink "
    "os.system os.unsetenv pty.spawn resource.prlimit resource.setrlimit signal.pthread_kill subprocess.Popen "
    "sys._current_exceptions sys._current_frames sys.monitoring.register_callback sys.setprofile sys.settrace".split()
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
WRITE_FLAGS = posix.O_WRONLY | posix.O_RDWR | posix.O_CREAT | posix.O_TRUNC | posix.O_APPEND
DEVICES = ("/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")
HIDDEN = ("/proc/", "/sys/", "/dev/")  # the memory of this process, for one
MOST_LINKS = 40


def guard(folder: str) -> None:
    """From here on: no network, no other process, no change to a file outside `folder`."""
    readlink, stat = posix.readlink, posix.stat

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in BARRED_EVENTS or event.startswith(BARRED_FAMILIES):
            raise PermissionError(f"{event} is not allowed here")
        if event == "import":
            if type(args[0]) is not str or args[0] in BARRED_MODULES:
                raise ImportError(f"{args[0]} is not allowed here")
            return
        if event == "open":
            paths, (_, mode, flags) = args[:1], args
            writes = ("w" in mode or "a" in mode or "x" in mode or "+" in mode) if mode else bool(flags & WRITE_FLAGS)
        elif event in PATH_EVENTS:
            paths, mode, writes = args[: PATH_EVENTS[event]], "", True
        else:
            return
        for given in paths:
            if type(given) is int:  # already open
                continue
            if type(given) is not str and type(given) is not bytes:  # another class could run code in here
                raise PermissionError("a path of this type is not allowed here")
            path = given if isinstance(given, str) else given.decode("utf-8", "surrogateescape")
            left = (path if path.startswith("/") else f"{folder}/{path}").split("/")[::-1]
            real, links = "", 0
            while left:
                part = left.pop()
                if part == "..":
                    real = real.rpartition("/")[0]
                elif part not in ("", "."):
                    try:
                        target = readlink(f"{real}/{part}")
                    except OSError:  # no link, or not there
                        real = f"{real}/{part}"
                        continue
                    links += 1
                    if links > MOST_LINKS:
                        raise PermissionError("so many links are not allowed here")
                    real = "" if target.startswith("/") else real
                    left.extend(target.split("/")[::-1])
            if f"{real}/".startswith(f"{folder}/") or real in DEVICES:
                continue
            if writes or f"{real}/".startswith(HIDDEN):
                raise PermissionError(f"{event} of {path!r} is not allowed here")
            if mode is None:
                try:
                    is_folder = stat(real or "/").st_mode & 0o170000 == 0o040000
                except OSError:
                    continue
                if is_folder:  # its descriptor would let later calls name files in it that this hook does not see
                    raise PermissionError(f"{event} of the folder {path!r} is not allowed here")

    sys.addaudithook(hook)
