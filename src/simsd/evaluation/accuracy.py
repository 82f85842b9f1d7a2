"""How many questions of a suite are answered right, and what the answers cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from simsd.evaluation import asking
from simsd.evaluation.cost import Cost
from simsd.evaluation.graders import grade
from simsd.evaluation.statistics import wilson
from simsd.evaluation.suites import Question, messages
from simsd.llm import LLM, Completion, SamplingParams, Stats
from simsd.progress import track


@dataclass(frozen=True)
class Answer:
    """One question with its answer. `error` is why there is none."""

    question: Question
    completion: Completion
    right: bool

    def to_dict(self) -> dict[str, Any]:
        """One line of the file that `simsd eval --output` writes."""
        question, completion = self.question, self.completion
        return {
            "skill": question.skill,
            "question": question.question,
            "answer": question.answer,
            "text": completion.text,
            "right": self.right,
            "finish_reason": completion.finish_reason,
            "tokens": completion.stats.tokens,
            "error": None if completion.error is None else str(completion.error),
        }


@dataclass(frozen=True)
class Accuracy:
    """A suite's result.

    questions: those that have an answer, or failed; asked: all, of which an interrupted run has the others not.
    right: of the questions; failed: those that could not be answered, none of them right. failure: why, of the first.
    interval: 95 % (Wilson) for the share of right answers; cost: of all answers together.
    """

    suite: str
    asked: int
    questions: int
    right: int
    cost: Cost
    failed: int = 0
    failure: str | None = None

    @property
    def accuracy(self) -> float:
        return self.right / max(self.questions, 1)

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.accuracy, self.questions)

    @property
    def partial(self) -> bool:
        """True where it was interrupted. The engine's seconds then hold those of texts that are not counted."""
        return self.questions < self.asked

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "suite": self.suite,
            "asked": self.asked,
            "questions": self.questions,
            "right": self.right,
            "failed": self.failed,
            "failure": self.failure,
            "accuracy": self.accuracy,
            "interval": list(self.interval),
            **self.cost.to_dict(),
        }


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while a suite was measured. result: of the questions that were finished."""

    def __init__(self, result: Accuracy) -> None:
        super().__init__(f"interrupted after {result.questions} of {result.asked} questions")
        self.result = result


def measure(
    llm: LLM,
    suite: str,
    questions: Sequence[Question],
    params: SamplingParams | None = None,
    *,
    raw: bool = False,
    progress: bool = False,
    keep: Callable[[Answer], None] = lambda answer: None,
) -> tuple[Accuracy, list[Answer]]:
    """Asks all questions, grades each answer as soon as it is there, and counts. Nothing of the warm-up is counted.

    suite: its name in the result. raw: without the chat template (never used where the checkpoint has none).
    keep: called with every answer in the order of the questions, those that an interruption leaves without their
    neighbours at the end. A question that fails alone is a wrong answer with `error`.

    Raises: ConfigError; SimsdError where generated code cannot be run; Interrupted.
    """
    own = llm.with_options()  # its totals begin at zero
    plain = raw or own.tokenizer.chat_template is None
    prompts = [one.question if plain else messages(one) for one in questions]
    each = [SamplingParams() if params is None else params] * len(prompts)
    found = _Found(suite, questions, keep)
    try:
        asking.warm_up(llm, prompts, each)
        with (
            track("answers", len(questions), progress) as advance,
            closing(asking.answers(own, prompts, each)) as coming,
        ):
            for place, completion in coming:
                found.add(place, completion)
                advance(1)
    except KeyboardInterrupt as stop:
        raise Interrupted(found.result(own.totals)) from stop
    finally:
        found.keep_rest()
    return found.result(own.totals), found.answers


@dataclass
class _Found:
    """The answers so far, by the places of their questions; the first `kept` were handed on."""

    suite: str
    questions: Sequence[Question]
    keep: Callable[[Answer], None]
    by_place: dict[int, Answer] = field(default_factory=dict)
    kept: int = 0

    def add(self, place: int, completion: Completion) -> None:
        right = completion.error is None and grade(self.questions[place], completion.text)
        self.by_place[place] = Answer(self.questions[place], completion, right)
        while self.kept in self.by_place:
            self.kept += 1
            self.keep(self.by_place[self.kept - 1])

    def keep_rest(self) -> None:
        """Hands on those that waited for an earlier one."""
        rest = [self.by_place[place] for place in sorted(self.by_place) if place >= self.kept]
        self.kept = len(self.questions)
        for answer in rest:
            self.keep(answer)

    @property
    def answers(self) -> list[Answer]:
        return [self.by_place[place] for place in sorted(self.by_place)]

    def result(self, spent: Stats) -> Accuracy:
        found = self.answers
        errors = [str(answer.completion.error) for answer in found if answer.completion.error is not None]
        return Accuracy(
            suite=self.suite,
            asked=len(self.questions),
            questions=len(found),
            right=sum(answer.right for answer in found),
            cost=Cost().after([answer.completion for answer in found], spent),
            failed=len(errors),
            failure=errors[0] if errors else None,
        )
