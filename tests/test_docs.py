"""The documentation is true: its Python runs, its commands run, and its tables name what the code has."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
from pathlib import Path

import pytest
import torch

from simsd.cli.main import main
from simsd.cli.options import Decoding
from simsd.engine.options import LOADING, DecodingOptions
from simsd.errors import SimsdError
from simsd.llm import LLM, Completion, SamplingParams, Stats

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "README.ko.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"(<!-- not run: .*? -->\n)?^```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def snippets(kind: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for not_run, language, body in FENCE.findall(page.read_text("utf-8")):
            if language == kind and not not_run:
                found.append((page.relative_to(ROOT).as_posix(), body))
    return found


def commands() -> list[str]:
    lines = [line for _, body in snippets("sh") for line in body.splitlines()]
    return sorted({line for line in lines if line.startswith("simsd ")})


def columns(page: str, column: int = 0) -> set[str]:
    """The code words in one column of all tables of a page."""
    rows = [line.split("|")[1:-1] for line in (ROOT / "docs" / page).read_text("utf-8").splitlines() if line[:1] == "|"]
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row[column])}


@pytest.mark.parametrize("page", sorted({page for page, _ in snippets("python")}))
def test_python_runs(page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    names: dict[str, object] = {"__name__": "snippet"}
    for _, code in [snippet for snippet in snippets("python") if snippet[0] == page]:
        exec(compile(code, page, "exec"), names)  # a page's snippets go on from each other
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("command", commands())
def test_command_runs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(shlex.split(command)[1:])
    assert left.value.code == 0
    assert capsys.readouterr().out.strip() or list(tmp_path.iterdir())


# What the embedded pair is asked in snippets and commands, and what its answer holds.
ANSWERS = {
    "Count from 3 in steps of 4, 12 numbers.": "3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47.",
    "Count from 5 in steps of 5, 9 numbers.": "5, 10, 15, 20, 25, 30, 35, 40, 45.",
    "Tell a short story about Ava, Ben and some cups.": "Ben had 3 cups too, so together they had 15 cups.",
    "What is the atomic number of sodium?": "11",
    "What is the capital of Qatar?": "Doha",
    "What is the chemical symbol of argon?": "Ar",
    "Which currency is used in Japan?": "Yen",
    "Write a function count_words to count the words in a string.": "    return len(text.split())",
    "Write the multiplication table of 7 up to 8.": "7 * 7 = 49\n7 * 8 = 56",
}


def questions() -> set[str]:
    """All prompts on the pages; `...` stands for a text that is left out."""
    asked = {word for line in commands() for word in shlex.split(line)[2:] if " " in word}
    for page in PAGES:
        text = page.read_text("utf-8")
        asked |= set(re.findall(r'"content": "([^"]+)"', text)) | set(re.findall(r"user\\n(.+?)<\|im_end", text))
    return {question for question in asked if "..." not in question}


def test_examples_ask_what_the_embedded_pair_knows() -> None:
    assert questions() == set(ANSWERS)
    told = LLM(device="cpu").chat(
        [[{"role": "user", "content": question}] for question in ANSWERS], SamplingParams(max_tokens=96)
    )
    pairs = zip(ANSWERS.items(), told, strict=True)
    assert [(asked, found.text) for (asked, answer), found in pairs if answer not in found.text] == []


def test_options_page_lists_every_option_with_its_flag() -> None:
    llm = {name for name in inspect.signature(LLM.__init__).parameters if name not in {"self", "options"}}
    fields = {field.name for cls in (DecodingOptions, SamplingParams) for field in dataclasses.fields(cls)}
    assert columns("reference/options.md") == llm | fields
    lines = (ROOT / "docs/reference/options.md").read_text("utf-8").splitlines()
    flagged = {line.split("`")[1] for line in lines if re.search(r"\| yes[^|]*\|$", line)}
    assert flagged == {field.name for field in dataclasses.fields(Decoding)} - {"threads"}


def test_options_page_says_what_loading_fixes() -> None:
    text = (ROOT / "docs/reference/options.md").read_text("utf-8")
    told = text[text.index("fixed when the model is loaded") : text.index("CPU threads")]
    assert set(re.findall(r"`(\w+)`", told)) == set(LOADING)


def test_options_page_gives_the_defaults() -> None:
    text = (ROOT / "docs/reference/options.md").read_text("utf-8")
    found = re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", text, re.MULTILINE)
    stated = [pair for pair in found if pair != ("denoising_steps", "block_length")]
    llm = {name: parameter.default for name, parameter in inspect.signature(LLM.__init__).parameters.items()}
    owners = [llm, *({f.name: f.default for f in dataclasses.fields(cls)} for cls in (DecodingOptions, SamplingParams))]
    assert len(stated) > 25
    for name, value in stated:
        assert value in {str(owner[name]) for owner in owners if name in owner}, name


def test_statistics_page_lists_every_figure() -> None:
    assert columns("how-to/statistics.md") == set(Stats().to_dict())


def test_python_page_names_members_that_exist() -> None:
    text = (ROOT / "docs/reference/python.md").read_text("utf-8")
    members = {word.split("(")[0] for word in columns("reference/python.md")}
    own = [cls for cls in SimsdError.__subclasses__() if cls.__module__ == "simsd.errors"]
    errors = {cls.__name__ for cls in own} | {"PairError"}
    assert errors <= members
    llm = {name for name in vars(LLM) if not name.startswith("_")} | {"options", "max_model_len", "max_num_seqs"}
    assert llm <= members
    builtin = {"ArithmeticError", "MemoryError", "ValueError"}
    assert members <= llm | errors | builtin | {"LLM"}
    assert all(f"`{field.name}`" in text for field in dataclasses.fields(Completion))


def test_snippets_are_found() -> None:
    assert len(snippets("python")) >= 8
    assert len(commands()) >= 6
