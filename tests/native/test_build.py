"""The kernels are compiled once, by the compiler that is there, into a folder where nobody else may write."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from simsd.native import build

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are kernels for Linux alone")


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that copies the names of its sources to its output, and counts its calls; with a cache of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "c++"
    script.write_text(
        f'#!/bin/sh\necho call >> "{tmp_path}/calls"\n'
        'while [ "$1" != -o ]; do [ "$1" != -c ] || echo "$2" > /dev/null; shift; done\necho made > "$2"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return script


def calls(tmp_path: Path) -> int:
    return len((tmp_path / "calls").read_text().split())


def read_only(path: Path, mode: int) -> bool:
    return mode != os.W_OK


def made(march: str = "native") -> Path:
    """Where the library was while it was to be loaded."""
    with build.library(march) as path:
        assert path.read_text() == "made\n"
        return path


def test_compiled_once_for_a_cpu(compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, first = made(), calls(tmp_path)
    assert path.parent == tmp_path / "cache" / "simsd" / "kernels"
    assert first == len(build.sources()) + 1
    assert made() == path
    assert calls(tmp_path) == first
    assert made("x86-64-v3") != path
    monkeypatch.setattr(build, "_cpu", lambda: "flags : another")
    assert made() != path


def test_what_is_in_the_cache_needs_no_compiler_and_no_right_to_write(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = made()
    compiler.unlink()
    monkeypatch.setenv("PATH", str(compiler.parent))
    monkeypatch.setattr(build.os, "access", read_only)
    assert made() == path


@pytest.mark.parametrize("damaged", [b"", b"mad", b"something else"])
def test_a_damaged_one_is_made_anew(compiler: Path, tmp_path: Path, damaged: bytes):
    path, first = made(), calls(tmp_path)
    path.write_bytes(damaged)
    assert made() == path
    assert calls(tmp_path) == 2 * first
    assert sorted(file.suffix for file in path.parent.iterdir()) == ["", ".so"]  # and the lock


def test_who_waits_says_so(compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog):
    import fcntl

    real, waited = fcntl.flock, []

    def held(file, how: int) -> None:
        if how & fcntl.LOCK_NB:
            raise BlockingIOError
        waited.append(real(file, how))

    monkeypatch.setattr(fcntl, "flock", held)
    made()
    assert "waiting for the process" in caplog.text
    assert waited == [None]


def test_a_compiler_may_say_anything(compiler: Path):
    compiler.write_text(compiler.read_text().replace("echo made", "printf '\\374ber' >&2; echo made"))
    assert made()


def test_the_folder_is_the_users_own(compiler: Path, tmp_path: Path):
    cache = made().parent
    assert not stat.S_IMODE(cache.stat().st_mode) & 0o077
    cache.chmod(0o777)
    elsewhere = made()
    assert elsewhere.parent != cache  # another user could have put code there
    assert not elsewhere.parent.exists()  # loaded, and gone


@pytest.mark.parametrize("why", ["a file", "no home", "read only"])
def test_a_cache_that_cannot_be_had_is_done_without(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
):
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    if why == "a file":
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    elif why == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(build.Path, "home", home)
    else:
        monkeypatch.setattr(build.os, "access", read_only)
    assert not made().exists()


def test_what_a_killed_process_left_is_removed(compiler: Path, tmp_path: Path):
    left = made().parent / "compiling-abc"
    left.mkdir()
    made("x86-64-v3")
    assert not left.exists()


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(build.BuildError, match=r"none of c\+\+, g\+\+, clang\+\+ is on the PATH"):
        made()
    monkeypatch.setenv("CXX", "nonsense -O2")
    with pytest.raises(build.BuildError, match="CXX is 'nonsense', which is not on the PATH"):
        made()


@pytest.mark.parametrize("says", ["unknown option", ""])
def test_a_compiler_that_fails_says_why_and_leaves_nothing(compiler: Path, tmp_path: Path, says: str):
    compiler.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit 3\n")
    with pytest.raises(build.BuildError, match=says or "ended with 3"):
        made()
    assert [file.name for file in (tmp_path / "cache" / "simsd" / "kernels").iterdir()] == ["lock"]


def test_the_compiler_that_is_asked_for_with_its_options(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = compiler.rename(tmp_path / "other")
    monkeypatch.setenv("CXX", f"{other} -O1")
    assert build._compiler() == [str(other), "-O1"]
    assert made()


def test_no_kernels_for_another_platform(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    with pytest.raises(build.PlatformError, match="aarch64"):
        made()
