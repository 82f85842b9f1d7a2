"""Removes the folder in which generated code ran, whatever the code left in it."""

from __future__ import annotations

import os
import secrets
import stat
import time
from contextlib import suppress
from pathlib import Path

SECONDS = 20.0  # for the whole of it: something may go on writing


def remove(folder: str, seconds: float = SECONDS) -> str | None:
    """Removes a folder with all that is in it. None, or one sentence on what is left. Raises nothing.

    Links are removed and not followed. A folder inside is emptied into the top one and removed, so that neither deep
    nesting nor long paths matter.
    """
    left = "it cannot be opened"
    with suppress(OSError):
        Path(folder).chmod(stat.S_IRWXU)
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            left = _empty(top, time.monotonic() + seconds)
        finally:
            os.close(top)
        Path(folder).rmdir()
        return None
    return f"the folder {folder!r} of generated code could not be removed ({left}); remove it by hand"


def _empty(top: int, deadline: float) -> str:
    """Empties the folder as far as that is possible; what is left, in words."""
    mark, moved = secrets.token_hex(8), 0
    while names := os.listdir(top):
        before = len(names)
        removed = 0
        for name in names:
            if time.monotonic() > deadline:
                return "it took too long"
            if _unlink(top, name):
                removed += 1
                continue
            hoisted = _hoist(top, name, f"{mark}-{moved}-")
            moved += 1
            removed += hoisted
        if not removed:
            return f"{before} entries cannot be removed"
    return "it is empty"


def _unlink(parent: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=parent)
    except OSError:  # a folder, or something that stays
        return False
    return True


def _hoist(top: int, name: str, prefix: str) -> bool:
    """Moves the folders in a folder up to the top one, removes all else in it, and the folder itself; True if so."""
    with suppress(OSError):
        _open_up(top, name)
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
        try:
            for number, entry in enumerate(os.listdir(inner)):  # noqa: PTH208 - of a descriptor
                if not _unlink(inner, entry):
                    _move_up(inner, entry, top, f"{prefix}{number}")
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=top)
        return True
    return False


def _move_up(inner: int, name: str, top: int, new: str) -> None:
    with suppress(OSError):
        _open_up(inner, name)  # a folder that moves changes itself
        os.rename(name, new, src_dir_fd=inner, dst_dir_fd=top)


def _open_up(parent: int, name: str) -> None:
    """Gives its owner all rights to a folder; not to what a link points to."""
    if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        os.chmod(name, stat.S_IRWXU, dir_fd=parent)
