"""A folder goes, whatever is in it; what is outside stays; and what cannot go is told."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from simsd.evaluation import clearing

pytestmark = pytest.mark.skipif(os.name != "posix", reason="generated code runs on Linux and macOS only")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    return made


def test_links_are_removed_and_not_followed(tmp_path: Path, folder: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    (outside / "kept").write_text("kept")
    inner = folder / "inner"
    inner.mkdir()
    for place in (folder, inner):
        (place / "to a folder").symlink_to(outside)
        (place / "to a file").symlink_to(outside / "kept")
        (place / "to nothing").symlink_to(tmp_path / "nothing")
        (place / "to itself").symlink_to(place)
    assert clearing.remove(str(folder)) is None
    assert [one.name for one in tmp_path.iterdir()] == ["outside"]
    assert (outside / "kept").read_text() == "kept"
    assert outside.stat().st_mode & 0o777 == 0o750


def test_sockets_pipes_and_wide_trees_are_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder / "pipe")
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        for at in range(200):
            (folder / f"{at % 7}" / f"{at}" / "a" / "b").mkdir(parents=True)
            (folder / f"{at % 7}" / f"{at}" / "a" / "file").touch()
        assert clearing.remove(str(folder)) is None
    assert not folder.exists()


def test_who_goes_on_writing_does_not_hold_it_up_for_ever(folder: Path) -> None:
    done = threading.Event()

    def write() -> None:
        at = 0
        while not done.is_set():
            at += 1
            try:
                (folder / f"{at}").mkdir(parents=True)
            except OSError:
                continue

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        told = clearing.remove(str(folder), seconds=0.3)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert told is None or (str(folder) in told and "remove it by hand" in told)


@pytest.mark.parametrize("kind", ["missing", "a file", "a link"])
def test_what_is_no_folder_is_told(kind: str, tmp_path: Path) -> None:
    place, kept = tmp_path / "place", tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    if kind == "a file":
        place.touch()
    if kind == "a link":
        place.symlink_to(kept)
    told = clearing.remove(str(place))
    assert told is not None and repr(str(place)) in told and "\n" not in told
    assert (kept / "file").exists()


def test_what_cannot_be_removed_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (folder / name).touch()
    (folder / "inner").mkdir()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(clearing.os, "unlink", refuse)
    told = clearing.remove(str(folder))
    assert told is not None and "2 entries cannot be removed" in told
    assert sorted(one.name for one in folder.iterdir()) == ["a", "b"]
