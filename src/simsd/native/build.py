"""The kernels, compiled once for this CPU, by the compiler that is there, into the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parent / "kernels"
COMPILERS = ("c++", "g++", "clang++")
# The threads are PyTorch's own: its OpenMP library is there already, so ours is not linked against a second one.
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-fno-math-errno", "-ffp-contract=off")
PATIENCE = 300  # seconds

log = logging.getLogger("simsd")


class BuildError(Exception):
    """The kernels cannot be compiled here; the message says why."""


class PlatformError(BuildError):
    """There are none for this platform."""


@contextlib.contextmanager
def library(march: str = "native") -> Iterator[Path]:
    """The compiled kernels, to be loaded: from the cache, or made now, in a few seconds.

    march: as the compiler knows CPUs; native is this one.

    Raises: BuildError; OSError where there is no place for them.
    """
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise PlatformError(f"they are for Linux on x86-64 only, not for {sys.platform} on {platform.machine()}")
    cache, key = _cache(), _key(march)
    found = None if cache is None else _whole(cache, key)
    if found is None and cache is not None and os.access(cache, os.W_OK):
        with _alone(cache):  # another process may have made them meanwhile
            found = _whole(cache, key) or _compile(march, cache, key)
    if found is not None:
        yield found
        return
    with tempfile.TemporaryDirectory(prefix="simsd-kernels-") as folder:
        yield _compile(march, Path(folder), key)


def sources() -> list[Path]:
    return sorted(SOURCES.glob("*.cpp"))


def _compiler() -> list[str]:
    asked = shlex.split(os.environ.get("CXX", ""))
    for name in asked[:1] or COMPILERS:
        if found := shutil.which(name):
            return [found, *asked[1:]]
    looked = f"CXX is {asked[0]!r}, which" if asked else f"none of {', '.join(COMPILERS)}"
    raise BuildError(f"there is no C++ compiler: {looked} is {'not ' if asked else ''}on the PATH")


def _key(march: str) -> str:
    """Another source or CPU has another library: a home folder may be shared by machines."""
    parts = [march, _cpu(), FLAGS, *(file.read_text() for file in (*sources(), *sorted(SOURCES.glob("*.h"))))]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _cpu() -> str:
    """What the first processor can do."""
    with Path("/proc/cpuinfo").open() as file:
        return next((line for line in file if line.startswith("flags")), "")


def _cache() -> Path | None:
    """The user's own cache; None where there can be none, or where others may write: code is not loaded from there."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "simsd" / "kernels"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        told = folder.stat()
    except (OSError, RuntimeError):  # no home, or not writable
        return None
    return folder if told.st_uid in (0, os.getuid()) and not told.st_mode & 0o022 else None


def _whole(folder: Path, key: str) -> Path | None:
    """The library of this key, if its content is what its name says: a damaged one would end the process."""
    return next((file for file in folder.glob(f"{key}-*.so") if file.stem == f"{key}-{_digest(file)}"), None)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:24]


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process compiles; the others wait."""
    import fcntl

    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("waiting for the process that compiles the CPU kernels (it holds %s)", file.name)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(march: str, to: Path, key: str) -> Path:
    """What a process that was killed while it compiled, or a disk, has left there of them is removed."""
    compiler = _compiler()
    log.warning("compiling the CPU kernels with %s, once: a few seconds", compiler[0])
    for left in to.glob("compiling-*"):
        shutil.rmtree(left, ignore_errors=True)
    for left in to.glob(f"{key}-*.so"):
        left.unlink()
    with tempfile.TemporaryDirectory(prefix="compiling-", dir=to) as folder:
        objects = [str(Path(folder) / f"{file.stem}.o") for file in sources()]
        for file, made in zip(sources(), objects, strict=True):
            _run([*compiler, *FLAGS, f"-march={march}", "-c", str(file), "-o", made])
        fresh = Path(folder) / "kernels.so"
        _run([*compiler, "-shared", *objects, "-o", str(fresh)])
        return fresh.replace(to / f"{key}-{_digest(fresh)}.so")  # whole, or not there


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        said = (
            done.stderr.decode(errors="replace").strip()[-2000:] or f"it said nothing, and ended with {done.returncode}"
        )
        raise BuildError(f"{' '.join(command)} failed: {said}")
