"""A checkpoint's weight files: names and shapes first, then tensors one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from simsd.errors import ModelError
from simsd.models.values import read_json

_SHOWN = 6  # names listed in an error message


@dataclass(frozen=True)
class Piece:
    """A rectangle of a stored weight: some of its rows, and of a matrix some of its columns. None is all of them."""

    name: str
    rows: slice | None = None
    columns: slice | None = None

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Its own shape, within a weight of shape `whole`."""
        spans = zip((self.rows, self.columns), whole, strict=False)
        cut = [size if span is None else span.stop - span.start for span, size in spans]
        return (*cut, *whole[2:])


class WeightFiles:
    """The safetensors files of a folder: `model.safetensors`, or the shards of `model.safetensors.index.json`.

    on_read: called after every piece that `read` has copied.

    Raises:
        ModelError: no weights, a shard is missing or damaged, or the index names what the shards do not hold.
    """

    _on_read: Callable[[], None] = staticmethod(lambda: None)  # also of a subclass that makes its weights itself

    def __init__(self, folder: Path, on_read: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self._on_read = on_read
        self._files: dict[str, safe_open] = {}  # by weight name
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._stored: dict[str, str] = {}
        for path, names in _weight_paths(folder).items():
            held = self._open(path)
            lacking = sorted(names - held)
            if lacking:
                raise ModelError(
                    f"{path} lacks {len(lacking)} weights that the index says it holds: {_some(lacking)}; "
                    "download it again."
                )

    def _open(self, path: Path) -> set[str]:
        """Takes up a file; returns the names of its weights."""
        try:
            # `safe_open` maps the file: nothing is read until a tensor is asked for.
            file = safe_open(path, framework="pt", device="cpu")
            names = list(file.keys())
            for name in names:
                part = file.get_slice(name)
                self._files[name] = file
                self.shapes[name] = tuple(part.get_shape())
                self._stored[name] = part.get_dtype()
                if self._stored[name] not in _WIDTH:
                    raise ModelError(
                        f"{path} holds {name} as {self._stored[name]}; "
                        f"only {', '.join(_WIDTH)} weights can be loaded, so convert or dequantise it first."
                    )
            return set(names)
        except FileNotFoundError as error:
            raise ModelError(f"{path} does not exist, though the index lists it; download it again.") from error
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} is not a readable safetensors file ({error}); download it again.") from error

    @property
    def nbytes(self) -> int:
        """Bytes of all weights as stored."""
        return sum(_numel(shape) * _WIDTH[self._stored[name]] for name, shape in self.shapes.items())

    def check(self, expected: Mapping[str, tuple[int, ...]], optional: Mapping[str, tuple[int, ...]] = {}) -> None:
        """Compares names and shapes with what the model needs, before anything is read.

        Raises:
            ModelError: weights are missing, unexpected or wrongly shaped; the message names them.
        """
        missing = [name for name in expected if name not in self.shapes]
        if missing:
            raise ModelError(f"{self.folder} lacks {len(missing)} weights that config.json asks for: {_some(missing)}.")
        known = {**expected, **optional}
        unexpected = [name for name in self.shapes if name not in known]
        if unexpected:
            raise ModelError(f"{self.folder} holds {len(unexpected)} weights of another model: {_some(unexpected)}.")
        wrong = [
            f"{name} is {list(self.shapes[name])}, not {list(shape)}"
            for name, shape in known.items()
            if name in self.shapes and self.shapes[name] != shape
        ]
        if wrong:
            raise ModelError(f"{self.folder} does not fit its config.json: {_some(wrong)}.")

    def read(self, wanted: str | Piece | Sequence[str | Piece], dtype: torch.dtype, device: torch.device) -> Tensor:
        """One weight, or several stacked along their first dimension, copied one by one into one new tensor."""
        several = [wanted] if isinstance(wanted, str | Piece) else wanted
        pieces = [one if isinstance(one, Piece) else Piece(one) for one in several]
        shapes = [piece.shape(self.shapes[piece.name]) for piece in pieces]
        rows = [shape[0] for shape in shapes]
        fused = torch.empty(sum(rows), *shapes[0][1:], dtype=dtype, device=device)
        for piece, part in zip(pieces, fused.split(rows), strict=True):
            part.copy_(self.stored(piece))
            self._on_read()
        return fused

    def stored(self, piece: Piece) -> Tensor:
        """A piece as it is stored: a view of the mapped file, which holds no memory of its own."""
        file, whole = self._files[piece.name], self.shapes[piece.name]
        if piece.shape(whole) == whole:
            return file.get_tensor(piece.name)
        spans = (piece.rows, piece.columns)[: len(whole)]
        return file.get_slice(piece.name)[tuple(slice(None) if span is None else span for span in spans)]


_WIDTH = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


def _weight_paths(folder: Path) -> dict[Path, set[str]]:
    """The files that hold weights, each with the names that the index says it holds."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        named = read_json(index).get("weight_map")
        if not isinstance(named, dict) or not named or not all(isinstance(file, str) for file in named.values()):
            raise ModelError(f"{index} has no weight_map from weight names to file names; download it again.")
        paths: dict[Path, set[str]] = {}
        for name, file in named.items():
            paths.setdefault(folder / _inside(file, index), set()).add(name)
        return paths
    single = folder / "model.safetensors"
    if single.is_file():
        return {single: set()}
    raise ModelError(
        f"{folder} has neither model.safetensors nor model.safetensors.index.json; "
        "only safetensors checkpoints can be loaded."
    )


def _inside(file: str, index: Path) -> str:
    """The name of a file that can only lie in the checkpoint's folder."""
    path = PurePosixPath(file)
    plain = file.isprintable() and "\\" not in file  # half a character, say, or another system's separator
    if not plain or path.is_absolute() or ".." in path.parts or path.name == "":
        raise ModelError(f"{index} names {file!r}, which is no file of its folder; download it again.")
    return file


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
