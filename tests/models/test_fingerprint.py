"""A checkpoint's fingerprint: which changes of its files it tells, and which are none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from simsd.errors import ModelError
from simsd.models.fingerprint import PIECE, PIECES, fingerprint

PATTERNS = ("*.json", "*.safetensors")
WHOLE = PIECE * PIECES  # bytes of the longest file of which each is read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}", "utf-8")
    (folder / "model.safetensors").write_bytes(bytes(WHOLE))
    return folder


def replace(file: Path, content: bytes) -> None:
    """Other content under the same name, with the same time of last change."""
    then = file.stat().st_mtime_ns
    new = file.with_name("new")
    new.write_bytes(content)
    os.utime(new, ns=(then, then))
    new.replace(file)


@pytest.mark.parametrize("at", [0, 1, PIECE - 1, PIECE, WHOLE // 2, WHOLE - 1])
def test_one_other_byte_of_a_short_file_is_told_though_size_and_time_are_kept(folder: Path, at: int) -> None:
    before = fingerprint(folder, PATTERNS)
    content = bytearray(WHOLE)
    content[at] = 1
    replace(folder / "model.safetensors", bytes(content))
    assert fingerprint(folder, PATTERNS) != before


def test_other_weights_of_a_long_file_are_told(folder: Path) -> None:
    file, size = folder / "model.safetensors", 5 * WHOLE + 7
    file.write_bytes(bytes(size))
    before = fingerprint(folder, PATTERNS)
    replace(file, bytes(size // 2) + b"\1" * (size - size // 2))
    after = fingerprint(folder, PATTERNS)
    replace(file, bytes(size - 1) + b"\1")
    assert len({before, after, fingerprint(folder, PATTERNS)}) == 3


def test_a_copy_that_keeps_the_times_and_files_of_no_checkpoint_change_nothing(folder: Path, tmp_path: Path) -> None:
    before = fingerprint(folder, PATTERNS)
    shutil.copytree(folder, tmp_path / "elsewhere")
    (folder / "notes.txt").write_text("mine", "utf-8")
    assert fingerprint(folder, PATTERNS) == before == fingerprint(tmp_path / "elsewhere", PATTERNS)


def test_a_time_and_a_name_are_told(folder: Path) -> None:
    found = [fingerprint(folder, PATTERNS)]
    os.utime(folder / "config.json", ns=(1, 1))
    found.append(fingerprint(folder, PATTERNS))
    (folder / "config.json").rename(folder / "other.json")
    found.append(fingerprint(folder, PATTERNS))
    assert len(set(found)) == 3


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "model.safetensors").chmod(0)
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        fingerprint(folder, PATTERNS)
