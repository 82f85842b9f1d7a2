"""What a run ran on, in words."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path

import torch


def device_name(device: torch.device) -> str:
    """The GPU's or the processor's own name, as far as the system tells it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
