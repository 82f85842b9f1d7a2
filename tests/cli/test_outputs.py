"""Files of results: refused early, replaced whole, and never at the cost of what is shown."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from simsd.cli import outputs
from simsd.errors import ConfigError

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one: an input, an older result, links to both."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asked.jsonl").write_text("{}\n", "utf-8")
    (tmp_path / "old.csv").write_text("old", "utf-8")
    (tmp_path / "asked link").symlink_to("asked.jsonl")
    (tmp_path / "old link").symlink_to("old.csv")
    (tmp_path / "hard link").hardlink_to("asked.jsonl")
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["asked.jsonl"], "which --file reads too"),
        (["./asked.jsonl"], "which --file reads too"),
        (["asked link"], "which --file reads too"),
        (["hard link"], "which --file reads too"),
        (["new", "new"], "which --one writes too"),
        (["new", "../{folder}/new"], "which --one writes too"),
        (["old.csv", "old link"], "which --one writes too"),
        (["-"], "standard output"),
        (["."], "folder"),
        (["none/new"], "there is no folder"),
        (["old.csv/new"], "there is no folder"),
        (["n" * 300], "File name too long"),
        (["loop"], "cannot be written"),
    ],
    ids=str,
)
def test_what_cannot_be_written_is_refused_and_nothing_is_changed(folder: Path, files: list[str], words: str) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.name != "loop"}
    named = [
        (flag, Path(file.format(folder=folder.name))) for flag, file in zip(("--one", "--two"), files, strict=False)
    ]
    with pytest.raises(ConfigError) as caught:
        outputs.check(named, [("--file", folder / "asked.jsonl"), ("--data", None)])
    assert words in str(caught.value)
    assert named[-1][0] in str(caught.value)
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.name != "loop"} == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_may_not_be_written_is_refused(folder: Path, what: str) -> None:
    (folder if what == "folder" else folder / "old.csv").chmod(0o500)
    with pytest.raises(ConfigError, match="Permission denied"):
        outputs.check([("--csv", folder / ("new.csv" if what == "folder" else "old.csv"))])
    folder.chmod(0o700)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no folder that not even root may write")
def test_a_folder_that_takes_no_file_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--csv is '/proc/self/new\.csv', which cannot be written"):
        outputs.check([("--csv", Path("/proc/self/new.csv"))])


def test_what_can_be_written_is_not_touched_by_the_check(folder: Path) -> None:
    outputs.check([("--csv", folder / "old.csv"), ("--html", folder / "new"), ("--run", None)], [("--file", folder)])
    assert (folder / "old.csv").read_text("utf-8") == "old"
    assert not (folder / "new").exists()


@pytest.mark.parametrize("name", ["new", "old.csv", "old link"])
@pytest.mark.parametrize("content", ["ä\n", b"\x89PNG", "half \ud800"], ids=ascii)
def test_a_result_takes_the_place_of_an_older_one(folder: Path, name: str, content: str | bytes) -> None:
    (folder / "old.csv").chmod(0o640)
    outputs.write(folder / name, content)
    raw = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    assert (folder / name).read_bytes() == raw
    assert (folder / "old link").is_symlink()
    assert stat.S_IMODE((folder / "old.csv").stat().st_mode) == 0o640
    assert not list(folder.glob("*.part"))


def test_a_pipe_stays_a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    reader = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    outputs.check([("--csv", folder / "pipe")])
    outputs.write(folder / "pipe", "figures")
    assert os.read(reader, 100) == b"figures"
    assert stat.S_ISFIFO((folder / "pipe").stat().st_mode)
    os.close(reader)


def failing(error: Exception) -> Callable[[], str]:
    def content() -> str:
        raise error

    return content


@pytest.mark.parametrize(
    ("bad", "content", "words"),
    [
        pytest.param(FULL, lambda: "x", "No space left on device", marks=needs_full),
        (Path("gone/new.csv"), lambda: "x", "No such file"),
        (Path("new.csv"), failing(ConfigError("no plots here")), "no plots here"),
    ],
)
def test_the_result_is_shown_whatever_becomes_of_its_files(
    folder: Path, capsys: pytest.CaptureFixture[str], bad: Path, content: Callable[[], str], words: str
) -> None:
    with pytest.raises(typer.Exit) as caught:
        outputs.deliver(lambda: print("the table"), {bad: content, Path("other.md"): lambda: "the tables"})
    assert caught.value.exit_code == 1
    found = capsys.readouterr()
    assert found.out == "the table\n"
    assert found.err.startswith(f"simsd: {bad} was not written whole (") and words in found.err
    assert found.err.count("\n") == 1
    assert (folder / "other.md").read_text("utf-8") == "the tables"


def test_it_is_shown_even_where_a_file_shows_a_bug(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        outputs.deliver(lambda: print("the table"), {Path("old.csv"): failing(ZeroDivisionError())})
    assert capsys.readouterr().out == "the table\n"
    assert (folder / "old.csv").read_text("utf-8") == "old"


# ---------------------------------------------------------------------- piece by piece
@pytest.mark.parametrize("end", [None, KeyboardInterrupt(), ConfigError("wrong")], ids=repr)
@pytest.mark.parametrize("pieces", [[], ["one\n", "two \udc80\n"]], ids=len)
def test_pieces_replace_the_file_at_the_end_if_there_are_any(
    folder: Path, pieces: list[str], end: BaseException | None
) -> None:
    def work() -> None:
        with outputs.stream(folder / "old.csv") as out:
            for piece in pieces:
                out.write(piece)
                assert (folder / "old.csv").read_text("utf-8") == "old"
            assert len(list(folder.glob("*.part"))) == bool(pieces)  # nothing is lost by a crash
            if end is not None:
                raise end

    if end is None:
        work()
    else:
        with pytest.raises(type(end)):
            work()
    assert (folder / "old.csv").read_text("utf-8") == ("one\ntwo \\udc80\n" if pieces else "old")
    assert not list(folder.glob("*.part"))


@needs_full
def test_a_full_disk_ends_the_writing_and_not_the_work(folder: Path) -> None:
    with outputs.stream(FULL) as out:
        out.write("one\n")
        out.write("two\n")
    assert len(out.failures) == 1
    assert "No space left" in out.failures[0]
    with pytest.raises(typer.Exit):
        outputs.deliver(lambda: None, {}, out.failures)


def test_a_disk_that_fills_up_keeps_whole_pieces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = outputs._put

    def half(out: object, piece: str) -> None:
        real(out, piece[:2])  # pyright: ignore[reportArgumentType]
        raise OSError(28, "No space left on device")

    with outputs.stream(folder / "new") as out:
        out.write("one\n")
        monkeypatch.setattr(outputs, "_put", half)
        out.write("two\n")
        out.write("three\n")
    assert (folder / "new").read_text("utf-8") == "one\n"
    assert len(out.failures) == 1


def test_nowhere_is_a_place_too() -> None:
    with outputs.stream(None) as out:
        out.write("gone")
    assert out.failures == []
