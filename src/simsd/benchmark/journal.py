"""Samples on disk, written as they are measured: what an interrupted run has finished is not measured again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from simsd.benchmark.sample import Place, Sample
from simsd.errors import ConfigError

try:
    import fcntl
except ImportError:  # a system without such locks
    fcntl = None

_KIND = "simsd"
_BEGIN = json.dumps({"journal": _KIND})[:-1].encode()  # of the first line of every journal, and of no other file
_WORDS = {
    "model_files": "the files of the model (by name, size, time and contents)",
    "draft_model_files": "the files of the draft model (by name, size, time and contents)",
    "fingerprint": "the prompts (by fingerprint)",
    "workload": "prompts of",
}


class Journal:
    """A JSON Lines file: a first line that says which run this is, then a line a sample. `path` None keeps nothing.

    While it is open, no other process can open it.
    """

    def __init__(
        self,
        path: Path | None,
        run: dict[str, Any],
        *,
        restart: bool = False,
        expected: Mapping[Place, tuple[bool, ...]] | None = None,
    ) -> None:
        """Opens the file, or begins it. run: everything that makes samples comparable, as JSON.

        restart: throw away what the file holds, if it is a journal. expected: of each sample that the run may have,
        which of its answers are graded.
        Raises ConfigError where it belongs to another run or is in use, is no journal or damaged, or cannot be written.
        """
        self.path = path
        self.samples: list[Sample] = []
        self.resumed = False
        self._file: FileIO | None = None
        if path is None:
            return
        refuse_stranger(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b", buffering=0)
            _lock(self._file, path)
            self._open(path, json.loads(json.dumps(run)), restart, expected)
        except OSError as error:
            self.close()
            raise ConfigError(f"{path} cannot be used ({error.strerror or error}); give another file") from error
        except ConfigError:
            self.close()
            raise

    def _open(
        self, path: Path, run: dict[str, Any], restart: bool, expected: Mapping[Place, tuple[bool, ...]] | None
    ) -> None:
        assert self._file is not None
        self._file.seek(0)
        whole, end, rest = self._file.readall().rpartition(b"\n")
        if restart or not end:
            self._file.truncate(0)
            self._append({"journal": _KIND, "run": run})
            return
        first, *lines = whole.split(b"\n")
        changed = differences(_header(path, first), run)
        if changed:
            raise ConfigError(
                f"{path} holds another run: {', '.join(changed)}; give another file, or begin this one again "
                "with --restart"
            )
        self.samples = [_sample(path, number, line, expected) for number, line in enumerate(lines, start=2)]
        if rest:  # the process ended while it wrote this line
            self._file.truncate(len(whole) + len(end))
        self.resumed = bool(self.samples)

    def add(self, sample: Sample) -> None:
        """Raises OSError where the file takes no more; all earlier samples are then still in it."""
        self.samples.append(sample)
        try:
            self._append(sample.to_dict())
        except OSError as error:
            self.samples.pop()
            kept = f"samples kept in {self.path}: {len(self.samples)}; make room, and give the same command again"
            raise OSError(error.errno, f"{error.strerror or error}; {kept}") from error

    def _append(self, row: dict[str, Any]) -> None:
        """A line that is on the disk when this returns, or not there at all."""
        if self.path is None:
            return
        assert self._file is not None, "the journal is closed"
        end = self._file.seek(0, os.SEEK_END)
        rest = memoryview(json.dumps(row).encode() + b"\n")
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError:
            with suppress(OSError):
                self._file.truncate(end)
            raise

    @property
    def places(self) -> set[Place]:
        """What has been measured."""
        return {sample.place for sample in self.samples}

    def close(self) -> None:
        """Lets others open the file; the samples stay here."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def refuse_stranger(path: Path) -> None:
    """Raises ConfigError where something is there that is neither a journal nor empty: it is never written to."""
    try:
        if not path.exists():
            return
        if not path.is_file():
            raise ConfigError(f"{path} cannot be used (it is no file); give another file")
        with path.open("rb") as file:
            begin = file.read(len(_BEGIN))
    except OSError as error:
        raise ConfigError(f"{path} cannot be used ({error.strerror or error}); give another file") from error
    if begin and begin != _BEGIN:
        raise ConfigError(f"{path} is not a journal of a benchmark, and is left alone; give another file")


def differences(there: Mapping[str, Any], here: Mapping[str, Any], inside: str = "") -> list[str]:
    """What two runs do not have in common, with both values."""
    found: list[str] = []
    for name in sorted({*there, *here}):
        old, new = there.get(name), here.get(name)
        words = f"{inside}{_WORDS.get(name, name)}"
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{words} ")
        elif isinstance(old, list) and isinstance(new, list):
            found.append(f"{words} only there: {_some(old, new)}, only here: {_some(new, old)}")
        else:
            found.append(f"{words}: {_short(old)} there and {_short(new)} here")
    return found


def _some(these: list[Any], those: list[Any]) -> str:
    """What only `these` have, not more than can be read."""
    own = [_short(one) for one in these if one not in those]
    return " and ".join([*own[:2], *[f"{len(own) - 2} more"][: len(own) > 2]]) or "none"


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _lock(file: FileIO, path: Path) -> None:
    """Keeps other processes out until the file is closed, where the system and the disk have locks."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(f"{path} is in use by another run; wait until that is done, or give another file") from error
    except OSError:  # some network disks have none
        return


def _header(path: Path, line: bytes) -> dict[str, Any]:
    row = _json(path, 1, line)
    if not isinstance(row, dict) or not isinstance(row.get("run"), dict):
        raise _damaged(path, 1, "it does not say which run this is")
    return row["run"]


def _sample(path: Path, number: int, line: bytes, expected: Mapping[Place, tuple[bool, ...]] | None) -> Sample:
    try:
        sample = Sample.from_dict(_json(path, number, line))
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise _damaged(path, number, str(error)) from error
    if expected is not None:
        graded = expected.get(sample.place)
        if graded is None:
            raise _damaged(path, number, "its cell, repeat and group are not of this run")
        if graded != tuple(answer.right is not None for answer in sample.answers):
            raise _damaged(path, number, "its answers are not those to the prompts of this run")
    return sample


def _json(path: Path, number: int, line: bytes) -> Any:
    try:
        return json.loads(line)
    except RecursionError as error:
        raise _damaged(path, number, "it is nested too deeply") from error
    except ValueError as error:
        raise _damaged(path, number, f"it is no JSON ({error})") from error


def _damaged(path: Path, number: int, reason: str) -> ConfigError:
    return ConfigError(
        f"{path}, line {number}: {reason}; remove the line, give another file, or begin again with --restart"
    )
