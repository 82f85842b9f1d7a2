"""What several commands share: the engine behind the flags, output, and one reading of a completion."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simsd.cli import unheeded
from simsd.errors import PromptError, SimsdError
from simsd.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from simsd.cli.options import Decoding
    from simsd.llm import LLM, Completion, SamplingParams

Raw = Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is, without the chat template.")]
_ESCAPED = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def make_llm(options: Decoding, **more: Any) -> LLM:
    """The engine for these flags; `more` are further keyword arguments of `LLM`. Tests replace this function."""
    if options.threads is not None:
        import torch

        torch.set_num_threads(options.threads)
    from simsd.llm import LLM

    return LLM(**options.llm_options(), **more)


def open_llm(options: Decoding, what: str = "the model", *, settled: bool = True, **more: Any) -> LLM:
    """`make_llm` behind a spinner; flags that change nothing are told.

    settled: False where the method is not the flags' alone, as a server's, whose clients may ask for another one.
    """
    with loading(f"Loading {what}"):
        llm = make_llm(options, **more)
    given = options.llm_options()
    for sentence in [
        *(unheeded.by_method(given, llm.options) if settled else ()),
        *unheeded.by_device(given, llm.device),
    ]:
        note(f"simsd: {sentence}.")
    return llm


def someone_types() -> bool:
    """True if standard input is a terminal; a process may also have been started without any."""
    return sys.stdin is not None and sys.stdin.isatty()


def watched() -> bool:
    """True if standard error is a terminal, where progress can be shown."""
    return sys.stderr is not None and sys.stderr.isatty()


def read_stdin(line: bool = False) -> str:
    """The rest of standard input, or its next line; "" at its end.

    Raises:
        PromptError: it is not UTF-8 text.
    """
    if sys.stdin is None:
        return ""
    try:
        return sys.stdin.readline() if line else sys.stdin.read()
    except UnicodeDecodeError as error:
        raise PromptError("standard input is not UTF-8 text; convert it first.") from error


def check_text(text: str) -> str:
    """The text, if it can be encoded: bytes that are not UTF-8 come out of the command line as lone surrogates.

    Raises:
        PromptError: it cannot.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError("the prompt is not UTF-8 text; convert it first.") from error
    return text


def console(stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def loading(text: str) -> Any:
    """A spinner on stderr while a model loads (nothing is shown if stderr is not a terminal)."""
    return console(stderr=True).status(text)


def answer(llm: LLM, texts: list[str], params: SamplingParams, raw: bool = False) -> list[Completion]:
    """Decodes prompts as one batch, through the chat template if the checkpoint has one and `raw` is not asked for.

    A single prompt is passed alone, so that its error is raised; in a batch a bad one fails alone.
    """
    if raw or llm.tokenizer.chat_template is None:
        return llm.generate(texts if len(texts) > 1 else texts[0], params)
    # an empty conversation fails alone, as an empty text does
    conversations = [[{"role": "user", "content": text}] if text.strip() else [] for text in texts]
    return llm.chat(conversations if len(texts) > 1 else conversations[0], params)


def for_terminal(text: str) -> str:
    """Text that cannot steer a terminal: control characters other than tab and newline are spelt out.

    Piped output stays as the model wrote it.
    """
    if not sys.stdout.isatty():
        return text
    return printable(text, keep="\t\n")


def note(text: str) -> None:
    """A line on stderr, for people."""
    typer.echo(printable(text), err=True)


def print_json(value: Any, indent: int | None = 2) -> None:
    """JSON on stdout, as UTF-8 text even where the terminal's encoding is poorer.

    What JSON lets stand but a terminal obeys, or UTF-8 has no form for, is escaped as JSON escapes it.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    text = _ESCAPED.sub(lambda found: json.dumps(found[0])[1:-1], text)
    encoding = sys.stdout.encoding or "utf-8"
    if not encoding.lower().startswith("utf"):
        text = json.dumps(value, indent=indent)
    typer.echo(text)


def completion_json(completion: Completion) -> dict[str, Any]:
    """The documented object of one completion; "error" only where it failed."""
    found: dict[str, Any] = {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "steps": list(completion.steps),
        "stats": completion.stats.to_dict(),
    }
    if completion.logprobs is not None:
        found["logprobs"] = list(completion.logprobs)
    if completion.error is not None:
        found["error"] = error_json(completion.error)
    return found


def error_json(error: SimsdError) -> dict[str, str]:
    return {"type": type(error).__name__, "message": str(error)}


def stats_line(completion: Completion) -> str:
    """One line for people: how much text, how fast, how well the drafts did."""
    stats = completion.stats
    parts = [
        f"{stats.tokens} tokens",
        f"{stats.tokens_per_second:.1f} tokens/s",
        f"{stats.tokens_per_forward:.2f} tokens per target forward",
    ]
    if stats.drafted_tokens:
        parts.append(f"{stats.acceptance_rate:.0%} of {stats.drafted_tokens} drafted tokens accepted")
    return " · ".join(parts)
