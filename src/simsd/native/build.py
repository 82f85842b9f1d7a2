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
def library(march: str = "native", *, anew: bool = False) -> Iterator[Path]:
    """The compiled kernels, to be loaded: from the cache, or made now, in a few seconds.

    march: as the compiler knows CPUs; native is this one. anew: what the cache holds is of no use.

    Raises: BuildError; OSError where there is no place for them.
    """
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise PlatformError(f"they are for Linux on x86-64 only, not for {sys.platform} on {platform.machine()}")
    cache, name = _cache(), f"{_key(march)}.so"
    if cache is not None and (cache / name).exists() and not anew:
        yield cache / name
    elif cache is not None and os.access(cache, os.W_OK):
        with _alone(cache):
            if anew or not (cache / name).exists():  # else another process has made them meanwhile
                _compile(march, cache / name)
        yield cache / name
    else:
        with tempfile.TemporaryDirectory(prefix="simsd-kernels-") as folder:
            _compile(march, Path(folder) / name)
            yield Path(folder) / name


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


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process compiles; the others wait."""
    import fcntl

    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(march: str, made: Path) -> None:
    """Alone in its folder: what is left there of a process that was killed while it compiled, is removed."""
    compiler = _compiler()
    log.warning("compiling the CPU kernels with %s, once: a few seconds", compiler[0])
    for left in made.parent.glob("compiling-*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="compiling-", dir=made.parent) as folder:
        objects = [str(Path(folder) / f"{file.stem}.o") for file in sources()]
        for file, to in zip(sources(), objects, strict=True):
            _run([*compiler, *FLAGS, f"-march={march}", "-c", str(file), "-o", to])
        fresh = Path(folder) / "kernels.so"
        _run([*compiler, "-shared", *objects, "-o", str(fresh)])
        fresh.replace(made)  # whole, or not there


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        said = done.stderr.strip()[-2000:] or f"it said nothing, and ended with {done.returncode}"
        raise BuildError(f"{' '.join(command)} failed: {said}")
