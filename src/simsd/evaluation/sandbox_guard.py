"""The guard of an interpreter that runs generated code. Its source runs in there, in globals of its own.

One function without helpers, over immutable values and functions in C, all bound before the code runs: what the code
patches (builtins, `os`, `posixpath`, the globals of a frame) does not change what it may do.
"""

from __future__ import annotations

import itertools
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
# Changes to the file system, by the number of paths that lead their arguments.
PATH_EVENTS = frozenset(("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.utime"))
PATHS_EVENTS = frozenset(("os.rename",))
WRITE_FLAGS = posix.O_WRONLY | posix.O_RDWR | posix.O_CREAT | posix.O_TRUNC | posix.O_APPEND
DEVICES = ("/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")
HIDDEN = ("/proc/", "/sys/", "/dev/")  # the memory of this process, for one
MOST_LINKS = 40


def guard(folder: str, entries: int) -> None:
    """From here on: no network, no other process, no change to a file outside `folder`, and in it not more than
    `entries` folders made and files opened for writing."""

    count = itertools.count(1).__next__

    # All that the hook uses are its own defaults. The traceback of what it raises holds its frame, and by that the code
    # gets at globals and builtins, whose names it could rebind; at a function's defaults it does not get.
    def hook(
        event: str,
        args: tuple[Any, ...],
        *,
        folder: str = folder,
        entries: int = entries,
        made: Any = count,
        readlink: Any = posix.readlink,
        stat: Any = posix.stat,
        modules: Any = BARRED_MODULES,
        events: Any = BARRED_EVENTS,
        families: Any = BARRED_FAMILIES,
        on_path: Any = PATH_EVENTS,
        on_paths: Any = PATHS_EVENTS,
        write_flags: int = WRITE_FLAGS,
        devices: Any = DEVICES,
        hidden: Any = HIDDEN,
        most_links: int = MOST_LINKS,
        kind: Any = type,
        text: Any = str,
        octets: Any = bytes,
        number: Any = int,
        failure: Any = OSError,
        refusal: Any = PermissionError,
        missing: Any = ImportError,
    ) -> None:
        if event in events or event.startswith(families):
            raise refusal(f"{event} is not allowed here")
        if event == "import":
            if kind(args[0]) is not text or args[0] in modules:
                raise missing(f"{args[0]} is not allowed here")
            return
        mode, writes = "", True
        if event == "open":
            paths, (_, mode, flags) = args[:1], args
            writes = ("w" in mode or "a" in mode or "x" in mode or "+" in mode) if mode else flags & write_flags != 0
        elif event in on_path:
            paths = args[:1]
        elif event in on_paths:
            paths = args[:2]
        else:
            return
        for given in paths:
            if kind(given) is number:  # already open
                continue
            if kind(given) is not text and kind(given) is not octets:  # another class could run code in here
                raise refusal("a path of this type is not allowed here")
            path = given if kind(given) is text else given.decode("utf-8", "surrogateescape")
            left = path if path.startswith("/") else f"{folder}/{path}"
            real, links = "", 0
            while left:
                part, _, left = left.partition("/")
                if part == "..":
                    real = real.rpartition("/")[0]
                elif part not in ("", "."):
                    try:
                        target = readlink(f"{real}/{part}")
                    except failure:  # no link, or not there
                        real = f"{real}/{part}"
                        continue
                    links += 1
                    if links > most_links:
                        raise refusal("so many links are not allowed here")
                    real = "" if target.startswith("/") else real
                    left = f"{target}/{left}"
            if f"{real}/".startswith(f"{folder}/") or real in devices:
                continue
            if writes or f"{real}/".startswith(hidden):
                raise refusal(f"{event} of {path!r} is not allowed here")
            if mode is None:
                try:
                    is_folder = stat(real or "/").st_mode & 0o170000 == 0o040000
                except failure:
                    continue
                if is_folder:  # its descriptor would let later calls name files in it that this hook does not see
                    raise refusal(f"{event} of the folder {path!r} is not allowed here")
        if (event == "os.mkdir" or (event == "open" and writes)) and made() > entries:
            raise refusal(f"more than {entries} files and folders are not allowed here")

    sys.addaudithook(hook)
