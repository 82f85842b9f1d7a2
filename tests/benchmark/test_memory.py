from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from simsd.benchmark import memory
from simsd.benchmark.device import device_name
from simsd.benchmark.memory import Peaks, peak_bytes, reset_peak

MB = 10**6
CPU = torch.device("cpu")

# In a process of its own: the peak of this one may have been higher before the test.
ALLOCATES = """
import json, torch
from simsd.benchmark.memory import Peaks, peak_bytes, reset_peak
reset_peak(torch.device("cpu"))
before = peak_bytes(torch.device("cpu"))
peaks = Peaks(torch.device("cpu"))
peaks.begin()
held = torch.ones(200_000_000, dtype=torch.uint8)
del held
with_it = peaks.end("a")
peaks.begin()
print(json.dumps([before, with_it, peaks.end("b")]))
"""


def test_the_peak_grows_by_what_is_allocated_and_begins_anew() -> None:
    out = subprocess.run([sys.executable, "-c", ALLOCATES], capture_output=True, text=True, check=True).stdout
    before, with_it, afterwards = json.loads(out)
    assert 190 * MB < with_it - before < 260 * MB
    if Path("/proc/self/clear_refs").exists():
        assert afterwards < with_it - 150 * MB


def test_where_the_system_tells_no_peak_it_is_that_of_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "_CLEAR", tmp_path / "no" / "clear")
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "no" / "status")
    reset_peak(CPU)
    assert peak_bytes(CPU) > 50 * MB


def test_on_a_gpu_a_cell_is_not_charged_for_the_caches_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    held, peak = [100], [0]  # 100 bytes of weights

    def allocate(kept: int, passing: int) -> None:
        held[0] += kept
        peak[0] = max(peak[0], held[0] + passing)

    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: held[0])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak[0])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peak.__setitem__(0, held[0]))
    peaks = Peaks(torch.device("cuda"))

    def charged(name: str, kept: int, passing: int) -> int:
        peaks.begin()
        allocate(kept, passing)
        return peaks.end(name)

    assert charged("a", kept=10, passing=5) == 115
    assert charged("b", kept=1000, passing=50) == 1150
    assert charged("a", kept=0, passing=5) == 115
    assert charged("a", kept=20, passing=0) == 130  # its cache has grown
    assert charged("b", kept=0, passing=0) == 1100


def test_the_device_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_name(CPU).strip()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a GPU, {device}")
    assert device_name(torch.device("cuda:1")) == "a GPU, cuda:1"
