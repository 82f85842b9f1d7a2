"""The kernels are compiled once, by the compiler that is there, into a folder where nobody else may write."""

from __future__ import annotations

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


def test_compiled_once_for_a_compiler_and_a_cpu(compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = build.library()
    assert made.read_text() == "made\n"
    first = calls(tmp_path)
    assert first == len(build.sources()) + 1
    assert build.library() == made
    assert calls(tmp_path) == first
    assert build.library("x86-64-v3") != made
    monkeypatch.setattr(build, "_cpu", lambda: "flags : another")
    assert build.library() != made
    monkeypatch.undo()


def test_the_folder_is_the_users_own(compiler: Path, tmp_path: Path):
    cache = tmp_path / "cache" / "simsd" / "kernels"
    assert build.library().parent == cache
    assert not stat.S_IMODE(cache.stat().st_mode) & 0o077
    cache.chmod(0o777)
    assert build.library().parent != cache  # another user could have put code there


def test_a_cache_that_cannot_be_written_is_done_without(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert build.library().exists()


def test_a_user_without_a_home(compiler: Path, monkeypatch: pytest.MonkeyPatch):
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(build.Path, "home", home)
    assert build.library().exists()


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(build.BuildError, match=r"no C\+\+ compiler"):
        build.library()


def test_a_compiler_that_fails_says_why_and_leaves_nothing(compiler: Path, tmp_path: Path):
    compiler.write_text("#!/bin/sh\necho 'unknown option' >&2\nexit 1\n")
    with pytest.raises(build.BuildError, match="unknown option"):
        build.library()
    assert [file.name for file in (tmp_path / "cache" / "simsd" / "kernels").iterdir()] == ["lock"]


def test_the_compiler_that_is_asked_for(compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\nexit 3\n")
    other.chmod(0o755)
    monkeypatch.setenv("CXX", str(other))
    with pytest.raises(build.BuildError, match=str(other)):
        build.library()


def test_no_kernels_for_another_platform(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    with pytest.raises(build.BuildError, match="aarch64"):
        build.library()
