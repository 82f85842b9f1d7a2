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


# ---------------------------------------------------------------------- what gives no pass
WRITE_ALL = """
import os
def send(words):
    for fd in range(64):
        try: os.write(fd, words)
        except OSError: pass
"""
# Whatever hangs on a frame: its own names and globals, those of its callers, and what these hold, as texts and bytes.
SPEAK_OUT = """
import sys
def words(value, depth=3, seen=None):
    seen = set() if seen is None else seen
    if id(value) in seen or depth < 0: return
    seen.add(id(value))
    if isinstance(value, (str, bytes)): yield value.encode("utf-8", "replace") if isinstance(value, str) else value
    elif isinstance(value, dict):
        for one in list(value.values()): yield from words(one, depth - 1, seen)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for one in list(value): yield from words(one, depth - 1, seen)
def speak(frame):
    while frame is not None:
        for names in (frame.f_locals, frame.f_globals):
            for word in words(dict(names)):
                if len(word) == 32: send(word)
        frame = frame.f_back
    os._exit(0)
"""
CLEAR = """
def clear(frame):
    while frame is not None:
        for names in (frame.f_locals, frame.f_globals):
            for value in list(names.values()):
                if isinstance(value, list): value.clear()
                if isinstance(value, dict) and value is not globals(): value.pop("tests", None)
        frame = frame.f_back
"""
TRICKS = {
    "frames": f"{WRITE_ALL}{SPEAK_OUT}speak(sys._getframe())",
    "frames of a test": f"{WRITE_ALL}{SPEAK_OUT}def f(): speak(sys._getframe()); os._exit(0)",
    "frames of an exception": (
        f"{WRITE_ALL}{SPEAK_OUT}try: 1 / 0\nexcept Exception as e: speak(e.__traceback__.tb_frame)"
    ),
    "frames of other threads": f"{WRITE_ALL}{SPEAK_OUT}for one in sys._current_frames().values(): speak(one)",
    "frames of a thread": (
        f"{WRITE_ALL}{SPEAK_OUT}import threading\nt = threading.Thread(target=lambda: speak(sys._getframe()))\n"
        "t.start(); t.join()"
    ),
    "lists of the callers": f"import sys\n{CLEAR}clear(sys._getframe())",
    "lists of the callers, in a test": f"import sys\n{CLEAR}def f(): clear(sys._getframe()); return 1",
    "objects of the collector": f"{WRITE_ALL}import gc\nfor one in gc.get_objects(): send(repr(one).encode()[:32])",
    "a finaliser": (
        f"{WRITE_ALL}{SPEAK_OUT}class D:\n    def __del__(self): speak(sys._getframe())\nd = D(); d.me = d; del d"
    ),
    "a hook of the interpreter": f"{WRITE_ALL}{SPEAK_OUT}sys.addaudithook(lambda *a: speak(sys._getframe()))",
    "classes of all": (
        f"{WRITE_ALL}{SPEAK_OUT}def all_of(cls):\n"
        "    for sub in type.__subclasses__(cls):\n        yield sub\n        yield from all_of(sub)\n"
        "for cls in set(all_of(object)):\n    for value in list(vars(cls).values()):\n"
        "        for name, module in list(getattr(value, '__globals__', {}).get('sys', sys).modules.items()):\n"
        "            for word in words(vars(module)): send(word) if len(word) == 32 else None\n"
        "            if name == '__main__' and module is not sys.modules['__main__']:\n"
        "                for key in list(vars(module)): setattr(module, key, lambda *a: None)\n"
    ),
    "at exit": f"{WRITE_ALL}{SPEAK_OUT}import atexit\natexit.register(lambda: speak(sys._getframe()))",
    "leaving": "import os; os._exit(0)",
    "leaving in a test": "import os\ndef f(): os._exit(0)",
    "leaving by an exception": "def f(): raise SystemExit(0)",
    "tracing": (
        "import sys\ndef skip(frame, event, arg):\n"
        "    if event == 'line' and frame.f_code.co_name == '<module>' and frame.f_lineno == 2: frame.f_lineno = 3\n"
        "    return skip\nsys.settrace(skip)"
    ),
    "profiling": "import sys\nsys.setprofile(lambda *a: None)",
    "monitoring": (
        "import sys\nm = getattr(sys, 'monitoring', None)\n"
        "if m: m.use_tool_id(0, 'x'); m.set_events(0, m.events.LINE); m.register_callback(0, m.events.LINE, print)"
    ),
    "builtins that run code": "import builtins\nbuiltins.exec = builtins.compile = builtins.eval = lambda *a: None",
    "builtins that a test calls": "import builtins\nbuiltins.bool = builtins.len = builtins.set = lambda *a: 2",
    "the error of an assert": "import builtins\nbuiltins.AssertionError = builtins.Exception = type('E', (), {})",
    "the modules": "import sys\nsys.modules.clear()",
    "another main module": "import sys, types\nsys.modules['__main__'] = types.ModuleType('x')",
    "an import of one's own": "import builtins\nbuiltins.__import__ = lambda *a: None",
    "the memory": "print(open('/proc/self/mem', 'rb').read(0))\ndef f(): return 2",
    "the memory, by another way": (
        "import os\nos.open('../../../../../../proc/self/mem', os.O_RDONLY)\ndef f(): return 2"
    ),
    "another interpreter": "import _interpreters\ndef f(): return 2",
    "another interpreter, before 3.13": "import _xxsubinterpreters\ndef f(): return 2",
    "the guard, by the frame of what it raises": (
        "try: open('/nowhere', 'w')\nexcept PermissionError as e: trace = e.__traceback__\n"
        "while trace.tb_next: trace = trace.tb_next\nnames = trace.tb_frame.f_globals\n"
        "for at in (names, names['__builtins__']):\n    for name in list(at):\n"
        "        if name.isupper(): at[name] = ()\n        elif name != '__builtins__': at[name] = lambda *a: False\n"
        "for name, value in trace.tb_frame.f_locals.items():\n"
        "    if isinstance(value, (list, dict, set)): value.clear()\n"
        "import _ctypes\ndef f(): return 2"
    ),
    "writing everywhere": f"{WRITE_ALL}send(b'passed'); send(b'ready\\n'); send(b'0' * 32)\ndef f(): return 2",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_no_trick_gives_a_pass(trick: str) -> None:
    """The program answers wrong, or is not to run to its end."""
    code = TRICKS[trick] if "def f" in TRICKS[trick] else f"{TRICKS[trick]}\ndef f(): return 1"
    tests = ["assert len({f()}) == 1", "x = f()\nassert x == 2\ny = 1"]
    assert not run_tests(code, tests, SMALL).passed


@pytest.mark.parametrize("frame", ["sys._getframe(1)", "sys.exc_info()[2].tb_frame.f_back"])
def test_the_tests_are_not_hidden_from_the_program(frame: str) -> None:
    """A limit that the documentation names: no word for a pass is found in a frame, but the values of its test are."""
    look = (
        f"try: 1 / 0\n    except ZeroDivisionError: return [c for c in {frame}.f_code.co_consts if type(c) is str][0]"
    )
    assert run_tests(f"import sys\ndef f():\n    {look}", ["assert f() == 'the answer'"], SMALL).passed


def test_what_a_test_calls_is_not_what_the_code_made_of_the_builtins() -> None:
    assert run_tests("import builtins\nbuiltins.len = lambda a: 5", ["assert len([1]) == 1"], SMALL).passed


@pytest.mark.parametrize("name", ["realpath", "join", "_joinrealpath", "isabs"])
def test_the_guard_does_not_use_what_the_code_may_rebind(name: str, tmp_path: Path) -> None:
    code = (
        f"import builtins, posixpath, os, posix\nposixpath.{name} = lambda *a, **k: (os.getcwd(), True)\n"
        "builtins.isinstance = builtins.any = builtins.all = builtins.type = lambda *a: True\n"
        f"posix.readlink = lambda *a: os.getcwd()\nopen({str(tmp_path / 'new')!r}, 'w')"
    )
    assert "PermissionError" in refused(code)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_would_run_code_inside_the_guard_is_refused() -> None:
    code = "class P(str):\n    def startswith(self, *a): return True\nopen(P('/nowhere'), 'w')"
    assert "PermissionError" in refused(code)


@pytest.mark.parametrize("text", ["\ud800 = 1", "x = 1\0", "x = '\ud800'", "def f(:"])
def test_text_that_is_no_source_is_a_wrong_answer(text: str) -> None:
    assert refused(text).startswith("the program: ")
    assert not run_tests("x = 1", [text], SMALL).passed


def test_an_error_that_cannot_be_shown_is_a_wrong_answer() -> None:
    refused("class E(Exception):\n    def __str__(self): raise E\nraise E")


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


@pytest.mark.parametrize(
    "make",
    [
        "os.mkdir(str(i))",
        "open(str(i), 'w')",
        "os.close(os.open(str(i), os.O_CREAT | os.O_WRONLY))",
        "os.mkdir('a'); os.rmdir('a')",
    ],
)
def test_files_and_folders_are_counted(make: str) -> None:
    code = f"import os\nfor i in range({{}}): {make}"
    few = Limits(entries=20)
    assert run_tests(code.format(20), [], few).passed
    outcome = run_tests(code.format(21), [], few)
    assert not outcome.passed
    assert "more than 20 files and folders are not allowed here" in outcome.reason


def test_twenty_thousand_folders_end_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.tempfile, "tempdir", str(tmp_path))
    outcome = run_tests("import os\nfor i in range(20_000): os.mkdir(str(i))", [], Limits())
    assert "more than 1000 files and folders" in outcome.reason
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize("kind", ["a file", "no such folder"])
def test_without_a_place_for_the_folder_nothing_is_graded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    if kind == "a file":
        place.touch()
    monkeypatch.setattr(sandbox.tempfile, "tempdir", str(place))
    with pytest.raises(SimsdError, match="no place for a working folder"):
        run_tests("x = 1", [])


LEFT = {
    "deep": "import os\nfd = None\nfor _ in range(5000):\n    os.mkdir('d', dir_fd=fd)\n"
    "    new = os.open('d', os.O_RDONLY, dir_fd=fd)\n    os.close(fd) if fd else None\n    fd = new",
    "many": "for i in range(3000): open(str(i), 'w').close()",
    "no rights": "import os\nos.mkdir('a'); os.mkdir('a/b'); open('a/b/c', 'w'); os.mkdir('d', 0); os.mkdir('a/e', 0)",
    "long names": "import os\nfor i in range(9): os.mkdir('x' * 250 + str(i))\nopen('y' * 255, 'w')",
    "odd names": "import os\nfor n in (b'\\xff', b'\\n', b'-rf', b' ', b'[red]'): os.mkdir(n); open(n + b'/f', 'w')",
    "pipes": "import os\nos.mkfifo('pipe')",
}


@pytest.mark.parametrize("kind", LEFT)
def test_whatever_is_left_in_the_folder_is_removed(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.tempfile, "tempdir", str(tmp_path))
    outcome = run_tests(LEFT[kind], [], Limits(entries=10_000))
    assert outcome.passed, outcome.reason
    assert list(tmp_path.iterdir()) == []
