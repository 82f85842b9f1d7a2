"""Tells whether the files of a checkpoint are still the same, without reading all of its weights."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from simsd.errors import ModelError

PIECES, PIECE = 64, 1 << 12  # what is read of a file: that many places, that many bytes at each


def fingerprint(folder: Path, patterns: Iterable[str]) -> str:
    """Changes with the files that match: with a name, a size, a time of last change, or what is read of a file.

    Read are files of up to `PIECES * PIECE` bytes, and of longer ones pieces from the first byte to the last: other
    weights differ there, also if they keep size and time. A copy that keeps the times has the same fingerprint.

    Raises: ModelError where a file cannot be read.
    """
    files = sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})
    digest = hashlib.sha256()
    for file in files:
        try:
            state = file.stat()
            digest.update(repr((file.name, state.st_size, state.st_mtime_ns)).encode())
            for piece in _pieces(file, state.st_size):
                digest.update(piece)
        except OSError as error:
            raise ModelError(
                f"{file} cannot be read ({error.strerror}); check the checkpoint and its rights"
            ) from error
    return digest.hexdigest()[:16]


def _pieces(file: Path, size: int) -> Iterator[bytes]:
    with file.open("rb", buffering=0) as content:
        last = max(0, size - PIECE)
        for start in sorted({last * number // (PIECES - 1) for number in range(PIECES)}):
            content.seek(start, os.SEEK_SET)
            yield content.read(PIECE)
