"""Runs tasks of lm-evaluation-harness on an `LLM` that is already loaded (extra `eval`)."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from simsd.errors import ConfigError, SimsdError
from simsd.evaluation.cost import Cost
from simsd.evaluation.harness import SimsdLM
from simsd.evaluation.task_data import OWN, check_data, why_not
from simsd.llm import LLM, Completion

OWN_TASKS = Path(__file__).with_name("tasks")


@dataclass(frozen=True)
class TaskResult:
    """One task's figures: the metrics as the harness names them ("exact_match,strict-match"), errors beside them.

    None is a figure that is no finite number, such as the error of a single question.
    """

    task: str
    questions: int
    num_fewshot: int
    metrics: dict[str, float | None]


@dataclass(frozen=True)
class TaskRun:
    """Results of all tasks; cost is that of the generated text, scoring is not counted.

    samples: one dictionary a question and filter, as the harness logs them.
    asked, answered: texts; fewer are answered where the run was interrupted, and nothing is graded then: `samples` are
        the answered ones, with `graded` false. failed: texts that could not be generated; failure: why, of the first.
    """

    results: list[TaskResult]
    cost: Cost
    samples: list[dict[str, Any]]
    asked: int = 0
    answered: int = 0
    failed: int = 0
    failure: str | None = None
    partial: bool = False


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while tasks ran. run: what there is of it."""

    def __init__(self, run: TaskRun) -> None:
        super().__init__(f"interrupted after {run.answered} of {run.asked} texts")
        self.run = run


class _Tasks(TaskManager):
    """The harness's tasks, with one sentence for what cannot be run."""

    def __init__(self, include: Sequence[Path], data: Mapping[str, str], defaults: bool, unsafe: bool) -> None:
        super().__init__(include_path=list(include), include_defaults=defaults, metadata=dict(data))
        self._data = data
        self._unsafe = unsafe
        self._ready: dict[tuple[str, ...], Any] = {}

    def knows(self, names: Sequence[str]) -> bool:
        return all(self.match_tasks([name]) for name in names)

    def prepare(self, names: Sequence[str]) -> None:
        """Loads the tasks for the next `load`: what is wrong with them or with their data comes out now."""
        self._ready[tuple(names)] = self.load(list(names))

    def load(self, task_list: Any) -> Any:
        if (ready := self._ready.pop(tuple(task_list), None)) is not None:
            return ready
        # some tasks run a program as soon as they are loaded
        known = {name: self.task_index[name].cfg or {} for name in task_list}
        self._refuse([name for name, config in known.items() if config.get("unsafe_code")])
        try:
            loaded = super().load(task_list)
        except SimsdError:
            raise
        except Exception as error:  # task files, data sets and their libraries may raise anything
            name, cause = self._culprit(task_list, error)
            raise ConfigError(why_not(name, cause, self._data)) from cause
        self._refuse([name for name, task in loaded["tasks"].items() if getattr(task, "UNSAFE_CODE", False)])
        return loaded

    def _culprit(self, names: Sequence[str], error: Exception) -> tuple[str, Exception]:
        """The first task that cannot be loaded by itself, and why; else all of them."""
        for name in names if len(names) > 1 else ():
            try:
                super().load([name])
            except Exception as own:
                return name, own
        return ", ".join(names), error

    def _refuse(self, unsafe: Sequence[str]) -> None:
        if unsafe and not self._unsafe:
            raise ConfigError(
                f"task {unsafe[0]} runs the model's code unguarded; for MBPP take simsd_mbpp, which runs it in a "
                "process with limits, or allow it with --confirm-run-unsafe-code and HF_ALLOW_CODE_EVAL=1"
            )


def find_tasks(
    tasks: Sequence[str],
    include: Path | None = None,
    data: Mapping[str, str] | None = None,
    *,
    unsafe: bool = False,
    known_data: Iterable[str] = (),
) -> tuple[list[str], TaskManager]:
    """The tasks that these names and patterns stand for, with the harness's manager that loads them.

    include: a folder of further task files. data: files for tasks that ask for them by name.
    unsafe: tasks may run the model's code in this process. known_data: names in `data` that may be of other tasks.

    Raises: ConfigError naming a task that does not exist or cannot be loaded, or data that no task asks for.
    """
    folders = [OWN_TASKS, *([include] if include is not None else [])]
    if include is not None and not include.is_dir():
        raise ConfigError(f"{include} is no folder; --include-path takes a folder of task files")
    manager = _Tasks(folders, data or {}, defaults=False, unsafe=unsafe)
    if not manager.knows(tasks):  # the harness's own are thousands of files to read
        manager = _Tasks(folders, data or {}, defaults=True, unsafe=unsafe)
    missing = [name for name in tasks if not manager.match_tasks([name])]
    if missing:
        raise ConfigError(f"there is no task {missing[0]!r}; 'lm_eval ls tasks' lists those of lm-evaluation-harness")
    found = list(manager.match_tasks(list(tasks)))
    check_data(data or {}, [manager.task_index[name].yaml_path for name in found], known_data)
    manager.prepare(found)
    return found, manager


def run_tasks(
    llm: LLM,
    names: Sequence[str],
    manager: TaskManager,
    *,
    num_fewshot: int | None = None,
    limit: int | None = None,
    chat: bool = False,
    gen_kwargs: Mapping[str, Any] | None = None,
    unsafe: bool = False,
) -> TaskRun:
    """Runs tasks that `find_tasks` found.

    num_fewshot, gen_kwargs: instead of the tasks' own. limit: the first questions of each. chat: use the chat template.

    Raises: ConfigError where a task cannot be loaded, or has fewer examples than are asked for; Interrupted.
    """
    model = SimsdLM(llm)
    run: Any = evaluate  # its decorator hides its signature from type checkers
    random.seed(DEFAULT_RANDOM_SEED)
    np.random.seed(DEFAULT_OTHER_SEED)  # the generators that tasks use
    try:
        loaded: Any = manager.load(list(names))
        for task in loaded["tasks"].values():
            _set_up(task, num_fewshot, gen_kwargs or {})
        found = run(
            model,
            loaded,
            limit=limit,
            apply_chat_template=chat,
            fewshot_as_multiturn=chat,
            confirm_run_unsafe_code=unsafe,
            bootstrap_iters=1000,
        )
    except AssertionError as error:  # how the harness says that there are too few examples
        raise ConfigError(f"lm-evaluation-harness cannot run {', '.join(names)}: {error}") from error
    except KeyboardInterrupt as stop:
        samples = [_ungraded(request, completion) for request, completion in model.finished]
        raise Interrupted(_run(model, [], samples, partial=True)) from stop
    samples = [{"task": name, **sample} for name, logged in found.get("samples", {}).items() for sample in logged]
    results = [
        TaskResult(
            task=name,
            questions=int(figures.get("sample_len", 0)),
            num_fewshot=found["n-shot"].get(name, 0),
            metrics={key: _finite(value) for key, value in figures.items() if "," in key and _is_number(value)},
        )
        for name, figures in (found["results"] | found.get("groups", {})).items()
    ]
    return _run(model, results, samples)


def _set_up(task: Any, num_fewshot: int | None, gen_kwargs: Mapping[str, Any]) -> None:
    """How a task is asked, as the harness's command line has it: one that says it takes no examples gets none."""
    if gen_kwargs and task.get_config("output_type") == "generate_until":
        task.set_config(key="generation_kwargs", value=dict(gen_kwargs), update=True)
    own = task.get_config("num_fewshot")
    if own != 0:
        task.set_config(key="num_fewshot", value=(own or 0) if num_fewshot is None else num_fewshot)
    task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)


def _run(model: SimsdLM, results: list[TaskResult], samples: list[dict[str, Any]], *, partial: bool = False) -> TaskRun:
    errors = [str(completion.error) for _, completion in model.finished if completion.error is not None]
    return TaskRun(
        results=results,
        cost=model.cost,
        samples=samples,
        asked=model.asked,
        answered=len(model.finished),
        failed=len(errors),
        failure=errors[0] if errors else None,
        partial=partial,
    )


def _ungraded(request: Any, completion: Completion) -> dict[str, Any]:
    """As the harness logs a question, without what it would have found."""
    return {
        "task": request.task_name,
        "doc_id": request.doc_id,
        "doc": request.doc,
        "arguments": [list(request.args)],
        "resps": [[completion.text]],
        "graded": False,
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def task_prompts(
    name: str, limit: int | None = None, include: Path | None = None, data: Mapping[str, str] | None = None
) -> list[str]:
    """The prompts of a task as the harness would send them, without a chat template: of its first `limit` questions.

    include, data: as in `find_tasks`. A question with several requests counts with each different prompt.

    Raises: ConfigError where there is no such task, or it cannot be loaded.
    """
    names, manager = find_tasks([name], include, data, known_data=OWN.values())
    prompts: dict[str, None] = {}
    for task in manager.load(names)["tasks"].values():
        task.build_all_requests(limit=limit)
        prompts |= dict.fromkeys(str(instance.args[0]) for instance in task.instances)
    if not prompts:
        raise ConfigError(f"task {name!r} has no questions; choose another")
    return list(prompts)
