"""The guarded process: what must not pass, what must end, and what must stay possible."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simsd.errors import ConfigError, SimsdError
from simsd.evaluation import sandbox
from simsd.evaluation.sandbox import Limits, run_tests

pytestmark = pytest.mark.skipif(os.name != "posix", reason="generated code runs on Linux and macOS only")
SMALL = Limits(cpu_seconds=1, wall_seconds=20.0, memory_bytes=256 << 20)


def refused(code: str, limits: Limits = SMALL) -> str:
    outcome = run_tests(code, ["assert True"], limits)
    assert not outcome.passed
    return outcome.reason


@pytest.mark.parametrize(
    "code",
    [
        "x = 1",
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int' = 1\nassert A().x == 1",
        "import collections, datetime, functools, heapq, itertools, math, random, re, string, typing",
        "import tempfile\nwith tempfile.TemporaryFile() as f:\n    f.write(b'1')",
        "open('note.txt', 'w').write('1')\nimport os\nos.rename('note.txt', 'n')\nos.remove('n')",
        "print('x' * 10_000_000)",
        "try:\n    (lambda f: f(f))(lambda f: f(f))\nexcept RecursionError:\n    pass",
    ],
)
def test_ordinary_code_runs(code: str) -> None:
    outcome = run_tests(code, ["assert True"], SMALL)
    assert outcome.passed, outcome.reason


def test_failing_assert_is_named() -> None:
    outcome = run_tests("def f(): return 1", ["assert f() == 1", "assert f() == 2, 'two'"], SMALL)
    assert not outcome.passed
    assert outcome.reason == "test 2: AssertionError: two"


def test_no_tests_is_no_failure() -> None:
    assert run_tests("x = 1", [], SMALL).passed


def test_infinite_loop_ends() -> None:
    assert "CPU" in refused("while True: pass")


def test_waiting_ends() -> None:
    waits = "import threading\nthreading.Event().wait()"
    assert "0.2 seconds" in refused(waits, Limits(wall_seconds=0.2))


def test_output_flood_ends() -> None:
    assert "CPU" in refused("while True: print('x' * 1000)")


def test_report_flood_ends() -> None:
    one = "    try:\n        while True: os.write(fd, b'x' * 999)\n    except OSError: continue"
    flood = f"import os\nfor fd in range(3, 64):\n{one}"
    assert refused(flood) == "wrote too much"


@pytest.mark.skipif(os.uname().sysname != "Linux" if os.name == "posix" else True, reason="macOS does not limit memory")
@pytest.mark.parametrize("code", ["x = 'a' * 10**9", "x = []\nwhile True: x.append(bytes(10**6))"])
def test_memory_bomb_ends(code: str) -> None:
    assert "MemoryError" in refused(code)


@pytest.mark.parametrize("code", ["import sys; sys.exit(0)", "exit(0)", "raise SystemExit", "raise KeyboardInterrupt"])
def test_leaving_early_is_not_passing(code: str) -> None:
    assert refused(code).startswith("the program: ")


def test_leaving_at_once_is_not_passing() -> None:
    assert "ended before the last test" in refused("import os; os._exit(0)")


def test_leaving_inside_a_test_is_not_passing() -> None:
    assert not run_tests("import os\ndef f(): os._exit(0)", ["assert f() == 1"], SMALL).passed


def test_rebinding_the_builtins_does_not_skip_the_tests() -> None:
    code = "import builtins\nbuiltins.exec = builtins.compile = lambda *a: None"
    assert not run_tests(code, ["assert False"], SMALL).passed


def test_huge_recursion_ends() -> None:
    assert "RecursionError" in refused("def f(n): return f(n + 1)\nf(0)")
    refused("import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1)\nf(0)")


@pytest.mark.parametrize(
    "code",
    [
        "import os\nwhile True: os.fork()",
        "import os; os.system('true')",
        "import os; os.kill(os.getppid(), 9)",
        "import os; os.execv('/bin/true', ['true'])",
        "import subprocess; subprocess.run(['true'])",
        "import multiprocessing\nmultiprocessing.Process(target=print).start()",
        "import ctypes",
        "import socket; socket.socket()",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')",
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (9, 9))",
    ],
)
def test_processes_network_and_limits_are_barred(code: str) -> None:
    assert "not allowed here" in refused(code)


def test_big_file_is_refused() -> None:
    assert "File too large" in refused("open('big', 'wb').write(bytes(10**7))")


def test_nothing_outside_the_folder_changes(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept")
    for code in (
        f"open({str(kept)!r}, 'w')",
        f"open({str(tmp_path / 'new')!r}, 'a')",
        f"import os; os.open({str(tmp_path / 'new')!r}, os.O_CREAT | os.O_WRONLY)",
        f"import os; os.remove({str(kept)!r})",
        f"import os; os.rename({str(kept)!r}, 'mine')",
        f"import os; os.mkdir({str(tmp_path / 'new')!r})",
        f"import os; os.symlink({str(tmp_path)!r}, 'link')",
        "open('../up', 'w')",
        f"import shutil; shutil.rmtree({str(tmp_path)!r})",
        f"import os; os.remove('kept', dir_fd=os.open({str(tmp_path)!r}, os.O_RDONLY))",
    ):
        assert "PermissionError" in refused(code), code
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert kept.read_text() == "kept"


def test_working_folder_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.tempfile, "tempdir", str(tmp_path))
    assert run_tests("open('left', 'w').write('1')", [], SMALL).passed
    assert list(tmp_path.iterdir()) == []


def test_environment_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert run_tests(
        "import os\nassert set(os.environ) <= {'TMPDIR', 'LC_CTYPE', '__CF_USER_TEXT_ENCODING'}", []
    ).passed


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match="positive"):
        Limits(cpu_seconds=0)


def test_windows_is_refused_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.os, "name", "nt")
    with pytest.raises(SimsdError, match="Linux or macOS"):
        run_tests("x = 1", [])


def test_a_process_that_cannot_start_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sandbox, "_CHILD", tmp_path / "missing.py")
    with pytest.raises(SimsdError, match="did not start"):
        run_tests("x = 1", [])
