"""Pieces of stored weights: the rectangle that is asked for, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from simsd.errors import ModelError
from simsd.models.weights import Piece, WeightFiles
from tests.models.checkpoints import random_checkpoint, write_json

MATRIX = torch.arange(30.0).view(6, 5)
VECTOR = torch.arange(6.0) - 3
CPU = torch.device("cpu")


@pytest.fixture
def files(tmp_path: Path) -> WeightFiles:
    save_file({"m": MATRIX, "v": VECTOR}, tmp_path / "model.safetensors")
    return WeightFiles(tmp_path)


@pytest.mark.parametrize("rows", [None, slice(0, 6), slice(1, 3), slice(5, 6)])
@pytest.mark.parametrize("columns", [None, slice(0, 5), slice(2, 5)])
def test_a_piece_is_a_rectangle(files: WeightFiles, rows: slice | None, columns: slice | None):
    found = files.stored(Piece("m", rows, columns))
    assert torch.equal(found, MATRIX[rows or slice(None), columns or slice(None)])


def test_pieces_of_one_weight_are_stacked_in_the_order_asked_for(files: WeightFiles):
    found = files.read([Piece("m", slice(4, 6)), "m", Piece("m", slice(0, 1))], torch.float64, CPU)
    assert torch.equal(found, torch.cat((MATRIX[4:], MATRIX, MATRIX[:1])).double())


def test_a_vector_has_rows_alone(files: WeightFiles):
    assert torch.equal(files.read(Piece("v", slice(2, 5)), torch.float32, CPU), VECTOR[2:5])
    assert torch.equal(files.read("v", torch.float32, CPU), VECTOR)


@pytest.mark.parametrize(
    "file", ["\ud800.safetensors", "/etc/passwd", "../model.safetensors", "a/../../b", "", ".", "a\\..\\b"]
)
def test_an_index_names_files_of_its_folder_alone(tmp_path: Path, file: str):
    folder = random_checkpoint(tmp_path / "c", shards=2)
    index = folder / "model.safetensors.index.json"
    written = json.loads(index.read_text())
    written["weight_map"]["model.norm.weight"] = file
    write_json(index, written)
    with pytest.raises(ModelError, match=r"index\.json names .*, which is no file of its folder"):
        WeightFiles(folder)


def test_a_shard_holds_what_the_index_says(tmp_path: Path):
    folder = random_checkpoint(tmp_path, shards=2)
    index = folder / "model.safetensors.index.json"
    written = json.loads(index.read_text())
    files = written["weight_map"]
    other = next(file for file in files.values() if file != files["model.norm.weight"])
    write_json(index, {"weight_map": files | {"model.norm.weight": other, "no.such": other}})
    with pytest.raises(ModelError, match=rf"{other} lacks 2 weights .*: model\.norm\.weight, no\.such; download"):
        WeightFiles(folder)


def test_it_is_told_when_a_piece_has_been_read(files: WeightFiles):
    read: list[int] = []
    told = WeightFiles(files.folder, lambda: read.append(len(read)))
    told.read(["m", Piece("m", slice(0, 1))], torch.float32, CPU)
    told.read("v", torch.float32, CPU)
    assert len(read) == 3
