"""`simsd trace`: one decoding, round by round, in the terminal, as JSON or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simsd.cli import common, outputs
from simsd.cli.common import AsJson, Raw
from simsd.cli.options import Decoding, decoding_options

if TYPE_CHECKING:
    from simsd.llm import LLM


@decoding_options()
def trace(
    prompt: Annotated[str, typer.Argument(help="The prompt.", show_default=False)],
    *,
    options: Decoding,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a self-contained page to this file.", show_default=False)
    ] = None,
    raw: Raw = False,
    as_json: AsJson = False,
) -> None:
    """Show what each round drafted, accepted, rejected and corrected."""
    outputs.check([("--html", html)])
    common.check_text(prompt)
    params = options.sampling_params()
    llm = common.open_llm(options, trace=True)
    with common.loading("Decoding"):
        completion = common.answer(llm, [prompt], params, raw)[0]
    from simsd.tracing.data import trace_data

    found = trace_data(prompt, completion, llm.tokenizer.token, _shown_options(llm))

    def show() -> None:
        if as_json:
            common.print_json(found, indent=None)
        elif html is None:
            from simsd.tracing.terminal import show

            show(found, common.console())
            common.console(stderr=True).print(common.stats_line(completion), style="dim", markup=False)

    from simsd.tracing.page import page

    outputs.deliver(show, {} if html is None else {html: lambda: page(found)})
    if html is not None:
        common.note(f"wrote {html} ({len(found['rounds'])} rounds)")


def _shown_options(llm: LLM) -> dict[str, Any]:
    """The resolved options that say how the text was made."""
    names = ["method", "layout", "acceptance", "block_length", "remasking_strategy"]
    if llm.options.method != "none":
        names += ["drafter", "states", "num_speculative_tokens"]
    values = {name: getattr(llm.options, name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None}
