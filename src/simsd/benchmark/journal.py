"""Samples on disk, written as they are measured: what an interrupted run has finished is not measured again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from simsd.benchmark.sample import Sample
from simsd.errors import ConfigError


class Journal:
    """A JSON Lines file: a first line that says which run this is, then a line a sample. `path` None keeps nothing."""

    def __init__(self, path: Path | None, run: dict[str, Any], *, restart: bool = False) -> None:
        """Opens the file, or begins it. run: everything that makes samples comparable, as JSON.

        restart: throw away what the file holds.
        Raises ConfigError where it belongs to another run, is no journal, or cannot be written.
        """
        self.path = path
        self.samples: list[Sample] = []
        self.resumed = False
        if path is None:
            return
        run = json.loads(json.dumps(run))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if restart or not path.exists() or path.stat().st_size == 0:
                path.write_text(json.dumps({"run": run}) + "\n", "utf-8")
                return
            header, self.samples = _read(path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be used ({error.strerror}); give another file") from error
        if header != run:
            changed = sorted(k for k in {*header, *run} if header.get(k) != run.get(k))
            raise ConfigError(
                f"{path} holds another run ({', '.join(changed)} differ); give another file, or restart this one"
            )
        self.resumed = bool(self.samples)

    def add(self, sample: Sample) -> None:
        self.samples.append(sample)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(sample.to_dict()) + "\n")
                file.flush()
                os.fsync(file.fileno())

    @property
    def places(self) -> set[tuple[str, int, int]]:
        """What has been measured."""
        return {sample.place for sample in self.samples}


def _read(path: Path) -> tuple[dict[str, Any], list[Sample]]:
    whole, end, rest = path.read_bytes().rpartition(b"\n")
    try:
        rows = [json.loads(line) for line in whole.decode().split("\n")]
        header = rows[0]["run"]
        samples = [Sample.from_dict(row) for row in rows[1:]]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ConfigError(f"{path} is not a journal of a benchmark; give another file, or restart this one") from error
    if rest:  # the process ended while it wrote this line
        os.truncate(path, len(whole) + len(end))
    return header, samples
