"""The house rules that a reader relies on: who may import whom, how long a file is, what the repository never says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "simsd"

# Part of the package -> the other parts it may import. `errors`, `progress` and `text` import nothing of the package.
ALLOWED = {
    "errors": set(),
    "progress": set(),
    "text": set(),
    "core": set(),
    "drafters": {"core", "errors"},
    "native": set(),
    "models": {"errors", "native", "progress"},
    "distributed": {"errors", "models"},
    "engine": {"core", "drafters", "errors", "models"},
    "llm": {"core", "distributed", "drafters", "engine", "errors", "models", "progress"},
    "generation": {"engine", "errors", "generation_config", "llm"},
    "generation_config": {"errors"},
    "__init__": {"errors", "generation", "llm"},
    "tracing": {"engine", "errors", "llm"},
    "evaluation": {"engine", "errors", "llm", "progress"},
    "serving": {"", "engine", "errors", "llm", "models"},
    "cluster": {"engine", "errors", "llm", "models", "serving"},
    "benchmark": {"", "engine", "errors", "evaluation", "llm", "models", "progress", "text"},
    "cli": {
        "",
        "benchmark",
        "cluster",
        "engine",
        "errors",
        "evaluation",
        "llm",
        "models",
        "progress",
        "serving",
        "text",
        "tracing",
    },
}


def part(module: str) -> str:
    """The part of the package that a dotted name belongs to; "" is the package itself."""
    return module.split(".")[1] if "." in module else ""


def python_files(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            module = node.module or ""
            yield from (f"{module}.{alias.name}" if module == "simsd" else module for alias in node.names)


@pytest.mark.parametrize("file", python_files("src"), ids=lambda file: str(file.relative_to(SOURCE)))
def test_dependencies_point_one_way(file: Path) -> None:
    own = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert own in ALLOWED, f"say in this test what {own} may import"
    inside = [name for name in imports(file) if name.split(".")[0] == "simsd"]
    wanted = {"" if part(name) == "__version__" else part(name) for name in inside}
    wanted = {"llm" if name in {"LLM", "SamplingParams", "Completion"} else name for name in wanted}
    assert wanted - {own} <= ALLOWED[own]


@pytest.mark.parametrize("file", python_files("src/simsd/core"), ids=lambda file: file.name)
def test_core_depends_on_torch_alone(file: Path) -> None:
    outside = {name.split(".")[0] for name in imports(file)} - {"simsd", "torch"}
    assert outside <= sys.stdlib_module_names


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, simsd, simsd.cli.main; print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_public_names_are_there() -> None:
    import simsd

    assert all(getattr(simsd, name) is not None for name in simsd.__all__)
    assert set(simsd.__all__) <= set(dir(simsd))
    with pytest.raises(AttributeError, match="no attribute 'LLm'"):
        _ = simsd.LLm


@pytest.mark.parametrize("file", python_files("src", "tests", "training", "benchmarks"), ids=lambda file: file.name)
def test_file_has_one_subject(file: Path) -> None:
    assert len(file.read_text("utf-8").splitlines()) <= 400


def test_repository_names_no_place_on_a_machine() -> None:
    place = re.compile(r"(?<![\w.~/-])/(?:home|root|work|Users)/\w")
    unfinished = re.compile("TO" + "DO|FIX" + "ME")
    suffixes = {".py", ".md", ".toml", ".yml", ".yaml", ".html", ".js", ".css", ".txt", ".svg"}
    files = [
        file
        for folder in ("src", "tests", "training", "benchmarks", "docs", "deploy", ".ci")
        for file in (ROOT / folder).rglob("*")
    ]
    files += ROOT.glob("*.*")
    for file in files:
        if file.suffix in suffixes and file.is_file():
            text = file.read_text("utf-8")
            assert not place.search(text), file
            assert not unfinished.search(text), file
