"""Peak memory of a piece of work: of the device's allocator on CUDA, of the process elsewhere."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import torch

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


def reset_peak(device: torch.device) -> None:
    """Begins a new peak where the system can: elsewhere `peak_bytes` is that of the whole process so far."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")


def peak_bytes(device: torch.device) -> int:
    """Bytes at the peak since `reset_peak`."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def held_bytes(device: torch.device) -> int:
    """Bytes that tensors hold on the device now; 0 where only the whole process can be measured."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


class Peaks:
    """Peak memory of several users of one device. On CUDA each one's peak is without what the others hold: every cell
    of a matrix has caches of its own, and is to be charged for those alone."""

    def __init__(self, device: torch.device) -> None:
        """What is held now, such as weights, counts for all."""
        self.device = device
        self.shared = self.before = held_bytes(device)
        self.own: dict[str, int] = {}

    def begin(self) -> None:
        reset_peak(self.device)
        self.before = held_bytes(self.device)

    def end(self, name: str) -> int:
        """Bytes at the peak since `begin`, charged to `name`; what was allocated since and is still held is its own."""
        own = self.own.get(name, 0)
        peak = peak_bytes(self.device) - (self.before - self.shared - own)
        self.own[name] = own + held_bytes(self.device) - self.before
        return peak
