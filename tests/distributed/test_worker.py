"""A worker's own process: it ends with rank 0, and needs no guard in the user's script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

SCRIPT = """
import time
from simsd import LLM, SamplingParams
llm = LLM(device="cpu", tensor_parallel_size=2)
print(llm.chat([{"role": "user", "content": "What is 2 + 3?"}], SamplingParams(max_tokens=8))[0].text, flush=True)
time.sleep(600)
"""


def test_workers_end_when_rank_0_is_killed(tmp_path: Path):
    """On Linux even where they are stopped. Nothing is left of them."""
    script = subprocess.Popen(
        [sys.executable, "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert script.stdin is not None
    assert script.stdout is not None
    script.stdin.write(SCRIPT.encode())
    script.stdin.close()
    script.stdin = None
    assert script.stdout.readline().strip()
    workers = psutil.Process(script.pid).children()
    assert len(workers) == 1
    if sys.platform == "linux":
        workers[0].suspend()
    script.kill()
    _, errors = script.communicate(timeout=60)  # the worker has the same stderr: this ends when it has ended, too
    assert errors == b""
    assert list(tmp_path.iterdir()) == []
