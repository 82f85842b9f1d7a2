"""Files that a command writes: refused before the work where they cannot be written, and replaced whole after it."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path

import typer

from simsd.cli.errors import report_text
from simsd.errors import ConfigError, SimsdError

Named = tuple[str, Path | None]  # a flag and its file, if one is given


# ---------------------------------------------------------------------- before the work
def check(outputs: Iterable[Named], inputs: Iterable[Named] = ()) -> None:
    """Refuses a file that cannot be written, that the same command reads, or that two flags would write.

    outputs, inputs: flags with their files. Nothing that is there is changed. Raises ConfigError.
    """
    taken = [(f"{flag} reads", file) for flag, file in inputs if file is not None]
    for flag, file in outputs:
        if file is None:
            continue
        refuse_dash(flag, file)
        for use, other in taken:
            if same(file, other):
                raise ConfigError(f"{flag} is {str(file)!r}, which {use} too; name another file.")
        try:
            _try(file)
        except OSError as error:
            raise ConfigError(
                f"{flag} is {str(file)!r}, which cannot be written ({error.strerror}); name another file."
            ) from error
        taken.append((f"{flag} writes", file))


def refuse_dash(flag: str, path: Path) -> None:
    """Raises ConfigError where the path means standard output, which has the result itself."""
    if str(path) == "-":
        raise ConfigError(f"{flag} is '-', but standard output has the result itself; give a name.")


def same(one: Path, other: Path) -> bool:
    """True if both names lead to one file, whether it is there yet or not."""
    with suppress(OSError):
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)


def _try(file: Path) -> None:
    """Raises the OSError that writing would raise, as far as that can be known beforehand."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"there is no folder {str(folder)!r}")
    target = Path(os.path.realpath(file))
    mode = _mode(target)
    if mode is not None and stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if mode is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if _is_replaced(mode):
        draft = _draft(target)
        draft.touch(exist_ok=False)
        draft.unlink()


# ---------------------------------------------------------------------- after it
def deliver(
    show: Callable[[], None], files: Mapping[Path, Callable[[], str | bytes]], failures: Sequence[str] = ()
) -> None:
    """Writes the files, and shows the result whatever becomes of them.

    failures: sentences on what could not be written before. Raises typer.Exit(1) where there is any, after telling it.
    """
    told = list(failures)
    try:
        for file, content in files.items():
            try:
                write(file, content())
            except (OSError, SimsdError) as error:
                told.append(failure(file, error))
    finally:
        show()
        for sentence in told:
            report_text("OSError", sentence, as_json=False)
    if told:
        raise typer.Exit(1)


def write(file: Path, content: str | bytes) -> None:
    """Raises OSError; the file is then as it was."""
    with _replacing(file) as out:
        _put(out, content)


def failure(file: Path, error: Exception) -> str:
    """What a reader of standard error must know of it."""
    return f"{file} was not written whole ({getattr(error, 'strerror', None) or error})"


class Stream:
    """Text that a file gets piece by piece while the work goes on.

    A piece that cannot be written ends the writing and not the work: `failures` tells it, for `deliver`. The file is
    replaced at the end, or at an interruption, and only if there was a piece: it is never emptied for nothing.
    """

    def __init__(self, file: Path | None, stack: ExitStack) -> None:
        self.file = file
        self.failures: list[str] = []
        self._stack = stack
        self._out: FileIO | None = None

    def write(self, piece: str) -> None:
        if self.file is None or self.failures:
            return
        end = 0
        try:
            if self._out is None:
                self._out = self._stack.enter_context(_replacing(self.file))
            end = self._out.tell() if self._out.seekable() else 0
            _put(self._out, piece)
        except OSError as error:
            self.failures.append(failure(self.file, error))
            if self._out is not None:
                with suppress(OSError):  # half a piece helps nobody
                    self._out.truncate(end)


@contextmanager
def stream(file: Path | None) -> Iterator[Stream]:
    """A `Stream` into the file; where there is none it goes nowhere. What was written stays if an exception leaves."""
    with ExitStack() as stack:
        out = Stream(file, stack)
        try:
            yield out
        finally:
            try:
                stack.close()
            except OSError as error:
                assert file is not None
                out.failures.append(failure(file, error))


# ---------------------------------------------------------------------- one file
def _mode(target: Path) -> int | None:
    """What is there; None where nothing is."""
    try:
        return target.stat().st_mode
    except FileNotFoundError:
        return None


def _is_replaced(mode: int | None) -> bool:
    """True for files and what is not there yet. Devices and pipes must stay, and are written directly."""
    return mode is None or stat.S_ISREG(mode)


def _draft(target: Path) -> Path:
    """A new name beside the file, on the same disk."""
    return target.with_name(f"{target.name[:50]}.{secrets.token_hex(4)}.part")


@contextmanager
def _replacing(file: Path) -> Iterator[FileIO]:
    """A draft that takes the file's place when it is left; an exception leaves the file as it was. Links stay links."""
    target = Path(os.path.realpath(file))
    mode = _mode(target)
    if not _is_replaced(mode):
        with target.open("wb", buffering=0) as out:
            yield out
        return
    draft = _draft(target)
    try:
        with draft.open("xb", buffering=0) as out:
            yield out
        if mode is not None:
            shutil.copymode(target, draft)
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _put(out: FileIO, content: str | bytes) -> None:
    """All of it. What UTF-8 has no form for, such as half a surrogate pair, is spelt out, in JSON's own way."""
    rest = memoryview(content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))
    while rest:
        rest = rest[out.write(rest) :]
