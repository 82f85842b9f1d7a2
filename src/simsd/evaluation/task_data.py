"""The local files of the harness's tasks: which task asks for which, and what to do where a task has no questions."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path

from lm_eval.tasks._yaml_loader import load_yaml

from simsd.errors import ConfigError

OWN = {"simsd_gsm8k": "gsm8k", "simsd_mbpp": "mbpp"}  # this package's tasks, and the names of their files
MIRRORED = {"gsm8k": "simsd_gsm8k", "mbpp": "simsd_mbpp", "mbpp_instruct": "simsd_mbpp"}
# What the data sets library and the hub's raise where they find no network, whatever package it comes from.
UNREACHED = ("ConnectionError", "OfflineModeIsEnabled", "LocalEntryNotFoundError", "ConnectTimeout", "ConnectError")


def check_data(data: Mapping[str, str], task_files: Iterable[Path | None], known: Iterable[str] = ()) -> None:
    """Raises ConfigError where no task asks for data of such a name, or where the file is not there.

    known: further names, for tasks that are not among these.
    """
    taken = [*(_names(file) for file in task_files), set(known)] if data else []
    for name, file in data.items():
        if not any(names is None or name in names for names in taken):
            own = ", ".join(f"{asked} ({task})" for task, asked in OWN.items())
            raise ConfigError(f"--data names {name!r}, which none of the tasks asks for; known names are {own}")
        if not Path(file).is_file():
            raise ConfigError(f"--data {name}: there is no file {file}; check the path")


def _names(task_file: Path | None) -> set[str] | None:
    """The names of the files that a task takes; None where that cannot be known, as of a group or a Python task."""
    if task_file is None:
        return None
    try:
        config = load_yaml(task_file, resolve_func=True)
    except Exception:  # loading the task says what is wrong with it
        return None
    if not isinstance(config.get("task"), str):
        return None
    source = config.get("custom_dataset")
    if not callable(source):
        return set()
    kinds = inspect.signature(source).parameters.values()
    return {one.name for one in kinds if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)} or None


def why_not(task: str, error: Exception, data: Mapping[str, str]) -> str:
    """One sentence: which task, why it cannot be loaded, and what to do."""
    reason = f"task {task} cannot be loaded"
    said = " ".join((str(error) or type(error).__name__).split())[:300]
    name = OWN.get(task)
    if name is not None and name in data:
        return f"{reason}: --data {name}={data[name]} is no JSON Lines file of such questions ({_kind(error)}: {said})"
    if _unreached(error):
        advice = "connect, or load it once where there is a network and bring the cache along (HF_HOME)"
        if name is not None or task in MIRRORED:
            local = f"--tasks {MIRRORED.get(task, task)} --data {name or OWN[MIRRORED[task]]}=FILE"
            advice = f"connect, or take a local file: {local}"
        return f"{reason}: its data set cannot be reached over the network ({said}); {advice}"
    return f"{reason} ({_kind(error)}: {said}); check the task file, or choose another task"


def _kind(error: BaseException) -> str:
    return type(error).__name__


def _unreached(error: BaseException | None) -> bool:
    """True where the error, or one that led to it, says that there is no network."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if {kind.__name__ for kind in type(error).__mro__} & set(UNREACHED):
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False
