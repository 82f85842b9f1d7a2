"""Free memory under the limits of control groups, as a container sets them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from simsd.models.available import cgroup_free, free_bytes, is_there


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_no_limit_is_no_number(tmp_path: Path):
    assert cgroup_free(tmp_path, "") == []
    write(tmp_path, memory__max="max", memory__current=5, memory__stat="inactive_file 1")
    assert cgroup_free(tmp_path, "") == []


def test_every_group_above_limits_too_and_file_pages_make_room(tmp_path: Path):
    write(tmp_path / "a", memory__max=1000, memory__current=300, memory__stat="anon 200\ninactive_file 100")
    write(tmp_path / "a" / "b", memory__max=5000, memory__current=50, memory__stat="anon 50")
    assert sorted(cgroup_free(tmp_path, "a/b")) == [800, 4950]


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path):
    write(tmp_path, memory__max=1000, memory__current=1200, memory__stat="")
    assert cgroup_free(tmp_path, "") == [0]


def test_version_one(tmp_path: Path):
    folder = tmp_path / "memory"
    write(folder, memory__limit_in_bytes=900, memory__usage_in_bytes=500, memory__stat="total_inactive_file 50")
    assert cgroup_free(tmp_path, "gone") == [450]


@pytest.mark.gpu
def test_what_the_allocator_holds_unused_counts_as_free():
    device = torch.device("cuda:0")
    before = free_bytes(device)
    held = torch.empty(1 << 28, dtype=torch.uint8, device=device)
    assert before - free_bytes(device) >= held.nbytes
    del held
    assert abs(before - free_bytes(device)) < 1 << 26


def test_of_a_device_that_is_not_there_nothing_is_known(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    known = [torch.device(name) for name in ("cpu", "cuda", "cuda:0", "cuda:1")]
    assert all(is_there(device) for device in known)
    assert not is_there(torch.device("cuda:2"))
    assert free_bytes(torch.device("cuda:2")) is None
