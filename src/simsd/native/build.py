"""The kernels, compiled once for this CPU, by the compiler that is there, into the user's cache."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
import platform
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


def library(march: str = "native") -> Path:
    """The compiled kernels, from the cache or made now: a few seconds, once.

    march: as the compiler knows CPUs; native is this one.

    Raises: BuildError.
    """
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise BuildError(f"there are kernels for Linux on x86-64 only, not for {sys.platform} on {platform.machine()}")
    compiler = _compiler()
    made = _folder() / f"{_key(compiler, march)}.so"
    if not made.exists():
        with _alone(made.parent):
            if not made.exists():
                log.info("compiling the CPU kernels with %s into %s", compiler, made.parent)
                _compile(compiler, march, made)
    return made


def sources() -> list[Path]:
    return sorted(SOURCES.glob("*.cpp"))


def _compiler() -> str:
    for name in (os.environ.get("CXX"), *COMPILERS):
        if name and (found := shutil.which(name)):
            return found
    raise BuildError(f"there is no C++ compiler: none of {', '.join(COMPILERS)} is on the PATH")


def _key(compiler: str, march: str) -> str:
    """Another source, compiler or CPU has another library: a home folder may be shared by machines."""
    told = Path(compiler).stat()
    parts = [os.path.realpath(compiler), told.st_size, told.st_mtime_ns, march, _cpu(), FLAGS]
    parts += [file.read_text() for file in (*sources(), *sorted(SOURCES.glob("*.h")))]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _cpu() -> str:
    """What the first processor can do."""
    with Path("/proc/cpuinfo").open() as file:
        return next((line for line in file if line.startswith("flags")), "")


def _folder() -> Path:
    """The user's own cache, or a folder for this process alone: code is not loaded from where others may write."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "simsd" / "kernels"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        told = folder.stat()
        if told.st_uid == os.getuid() and not told.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):  # no home, or not writable
        pass
    alone = tempfile.mkdtemp(prefix="simsd-kernels-")
    atexit.register(shutil.rmtree, alone, ignore_errors=True)
    return Path(alone)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process compiles; the others wait."""
    import fcntl

    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(compiler: str, march: str, made: Path) -> None:
    with tempfile.TemporaryDirectory(dir=made.parent) as folder:
        objects = [str(Path(folder) / f"{file.stem}.o") for file in sources()]
        for file, to in zip(sources(), objects, strict=True):
            _run([compiler, *FLAGS, f"-march={march}", "-c", str(file), "-o", to])
        fresh = Path(folder) / "kernels.so"
        _run([compiler, "-shared", *objects, "-o", str(fresh)])
        fresh.replace(made)  # whole, or not there


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stderr.strip()[-2000:]}")
