"""`simsd chat`: a conversation in the terminal, streamed as blocks are finished; works on piped input too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simsd.cli import common
from simsd.cli.common import AsJson
from simsd.cli.errors import USER_ERROR, report
from simsd.cli.options import Decoding, decoding_options
from simsd.errors import SimsdError

if TYPE_CHECKING:
    from simsd.llm import LLM, Completion, SamplingParams

HELP = """/help   this list
/reset  forget the conversation
/stats  figures of the last answer and of all
/quit   leave (so does Ctrl-D; Ctrl-C stops an answer)"""


@dataclass
class Conversation:
    """The messages so far, and what the answers cost."""

    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)

    def asking(self, text: str) -> list[dict[str, str]]:
        start = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*start, *self.messages, {"role": "user", "content": text}]

    def answered(self, question: str, answer: str) -> None:
        self.messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


@decoding_options()
def chat(
    *,
    options: Decoding,
    system: Annotated[str | None, typer.Option("--system", help="A system message.", show_default=False)] = None,
    forget: Annotated[
        bool | None,
        typer.Option(
            "--forget/--remember",
            help="Answer every message on its own. Default: only the embedded pair, which knows single questions.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Talk to the model; the answer appears as its blocks are finished."""
    params = options.sampling_params()
    llm = common.open_llm(options)
    session = _Session(llm, params, Conversation(system), llm.embedded if forget is None else forget, as_json)
    session.run()
    if session.failed and not common.someone_types():
        raise typer.Exit(USER_ERROR)


@dataclass
class _Session:
    llm: LLM
    params: SamplingParams
    conversation: Conversation
    forget: bool
    as_json: bool
    failed: bool = False

    def run(self) -> None:
        if common.someone_types() and not self.as_json:
            alone = " Every message is answered on its own." if self.forget else ""
            self._note(f"/help lists the commands; Ctrl-D leaves.{alone}")
        while (line := self._read()) is not None:
            text = line.strip()
            if text == "/quit":
                return
            if text.startswith("/"):
                self._command(text)
            elif text:
                self._turn(text)

    def _read(self) -> str | None:
        """The next message, or None at the end of the input."""
        if not common.someone_types():
            return common.read_stdin(line=True) or None
        _enable_line_editing()
        while True:
            try:
                return input("" if self.as_json else "\n> ")
            except EOFError:
                typer.echo("", err=True)
                return None
            except KeyboardInterrupt:
                typer.echo("\n(Ctrl-D leaves)", err=True)

    def _command(self, text: str) -> None:
        if text == "/help":
            self._note(HELP)
        elif text == "/reset":
            self.conversation.messages.clear()
            self._note("The conversation is forgotten.")
        elif text == "/stats":
            self._note(_stats(self.conversation.completions))
        else:
            self._note(f"There is no command {text.split()[0]}.\n{HELP}")

    def _note(self, text: str) -> None:
        """What is not an answer goes to stderr, so that piped output holds answers only."""
        common.console(stderr=True).print(text, style="dim", markup=False)

    def _turn(self, question: str) -> None:
        try:
            answer, completion = self._answer(question)
        except SimsdError as error:
            self.failed = True
            self._failure(error)
            return
        if not self.forget:
            self.conversation.answered(question, answer)
        if completion is not None:
            self.conversation.completions.append(completion)
        if self.as_json:
            common.print_json({"prompt": question, **_turn_json(answer, completion)}, indent=None)
        elif completion is not None and common.someone_types():
            self._note(common.stats_line(completion))

    def _failure(self, error: SimsdError) -> None:
        if self.as_json:
            common.print_json({"error": common.error_json(error)}, indent=None)
            return
        report(error, False)
        if self.conversation.messages:
            self._note("/reset forgets the conversation.")

    def _answer(self, question: str) -> tuple[str, Completion | None]:
        """The text (as far as Ctrl-C let it come) and the completion, None if it was stopped."""
        stream = self.llm.stream(self.conversation.asking(common.check_text(question)), self.params)
        text, completion = "", None
        try:
            for piece in stream:
                text += piece.text
                completion = piece.completion or completion
                self._show(piece.text)
        except KeyboardInterrupt:
            if not common.someone_types():
                raise
            self._show(" [stopped]")
        finally:
            close = getattr(stream, "close", None)  # an iterator that is no generator has nothing to free
            if close is not None:
                close()
        self._show("\n")
        if completion is not None and completion.error is not None:
            raise completion.error
        return text, completion

    def _show(self, text: str) -> None:
        if not self.as_json:
            typer.echo(common.for_terminal(text), nl=False)


def _turn_json(answer: str, completion: Completion | None) -> dict[str, Any]:
    if completion is None:
        return {"text": answer, "finish_reason": "stopped"}
    return common.completion_json(completion)


def _stats(completions: list[Completion]) -> str:
    if not completions:
        return "No answer yet."
    tokens = sum(completion.stats.tokens for completion in completions)
    seconds = sum(completion.stats.seconds for completion in completions)
    forwards = sum(completion.stats.target_forwards for completion in completions)
    total = f"{len(completions)} answers · {tokens} tokens · {tokens / max(seconds, 1e-9):.1f} tokens/s"
    return f"last  {common.stats_line(completions[-1])}\nall   {total} · {forwards} target forwards"


def _enable_line_editing() -> None:
    """Arrow keys and history in `input`, where the platform has readline."""
    try:
        import readline  # noqa: F401
    except ImportError:
        return
