"""`simsd generate`: answers one prompt or a batch of prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simsd.cli import common
from simsd.cli.common import AsJson, Raw
from simsd.cli.errors import USER_ERROR, report
from simsd.cli.options import Decoding, decoding_options
from simsd.errors import PromptError

if TYPE_CHECKING:
    from simsd.llm import Completion


@decoding_options()
def generate(
    *,
    options: Decoding,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT...", help="One or more prompts; '-' reads one from standard input.", show_default=False
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A file with one prompt a line.", show_default=False)
    ] = None,
    raw: Raw = False,
    as_json: AsJson = False,
) -> None:
    """Answer prompts; several are decoded as one batch."""
    texts = _prompts(prompts or [], file)
    params = options.sampling_params()
    llm = common.open_llm(options)
    with common.loading("Decoding"):
        completions = common.answer(llm, texts, params, raw)
    if as_json:
        found = [common.completion_json(completion) for completion in completions]
        common.print_json(found[0] if len(found) == 1 else found)
    else:
        _print(texts, completions)
    if any(completion.error for completion in completions):
        raise typer.Exit(USER_ERROR)


def _prompts(arguments: list[str], file: Path | None) -> list[str]:
    texts = [_stdin() if text == "-" else text for text in arguments]
    if file is not None:
        texts += [line for line in _read(file).splitlines() if line.strip()]
        if not texts:
            raise PromptError(f"{file} holds no prompt; write one a line.")
    if not texts and not common.someone_types():
        texts = [text for text in [_stdin()] if text]
    if not texts:
        raise PromptError("no prompt was given; write one after 'simsd generate', or use --file.")
    if len(texts) == 1 and not texts[0].strip():
        raise PromptError("the prompt is empty; write some text.")
    return [common.check_text(text) for text in texts]


def _stdin() -> str:
    return common.read_stdin().removesuffix("\n")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(f"{file} is not UTF-8 text; convert it first.") from error
    except OSError as error:
        raise PromptError(f"{file} cannot be read ({error.strerror}); check the path.") from error


def _print(texts: list[str], completions: list[Completion]) -> None:
    """Answers on stdout and all else on stderr, so that the answers can be piped on."""
    notes = common.console(stderr=True)
    for text, completion in zip(texts, completions, strict=True):
        if len(texts) > 1:
            typer.secho(f"> {_short(text)}", fg="cyan")
        if completion.error is not None:
            report(completion.error, as_json=False)
            continue
        typer.echo(common.for_terminal(completion.text))
        notes.print(common.stats_line(completion), style="dim", markup=False)


def _short(text: str, width: int = 70) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
