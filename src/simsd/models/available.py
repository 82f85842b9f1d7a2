"""How much memory is free where a model would run."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil
import torch

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def is_there(device: torch.device) -> bool:
    """Whether this machine has the device."""
    return device.type == "cpu" or (device.index or 0) < torch.cuda.device_count()


def free_bytes(device: torch.device) -> int | None:
    """Bytes that can still be allocated on the device; None where it is not there.

    On CUDA what PyTorch's allocator holds unused counts as free; on a CPU a container's limit is heeded.
    """
    if not is_there(device):
        return None
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    free = psutil.virtual_memory().available
    return min([free, *cgroup_free(_CGROUPS, _own_group(_OWN_CGROUP))])


def cgroup_free(root: Path, own: str) -> list[int]:
    """What each limit on this process leaves (Linux control groups, versions 2 and 1); empty without any.

    root: where control groups are mounted. own: the process's group, as a path below it.
    """
    second = [(root / own, "memory.max", "memory.current", "inactive_file")]
    second += [(folder, *second[0][1:]) for folder in second[0][0].parents if folder.is_relative_to(root)]
    first = [(root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")]
    left = []
    for folder, limit, used, files in (*second, *first):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            most, now = (int((folder / name).read_text()) for name in (limit, used))
            left.append(max(most - now + _statistic(folder / "memory.stat", files), 0))
    return left


def _statistic(file: Path, name: str) -> int:
    """Pages of files count as used, but make room when they have to."""
    found = [line.split()[1] for line in file.read_text().splitlines() if line.split()[:1] == [name]]
    return int(found[0]) if found else 0


def _own_group(file: Path) -> str:
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            if line.startswith("0::"):
                return line[3:].lstrip("/")
    return ""
