"""How many questions of a suite are answered right, and what the answers cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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

    interval: 95 % (Wilson) for the share of right answers; cost: of all answers together.
    """

    suite: str
    questions: int
    right: int
    cost: Cost

    @property
    def accuracy(self) -> float:
        return self.right / self.questions

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.accuracy, self.questions)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "suite": self.suite,
            "questions": self.questions,
            "right": self.right,
            "accuracy": self.accuracy,
            "interval": list(self.interval),
            **self.cost.to_dict(),
        }


def measure(
    llm: LLM,
    suite: str,
    questions: Sequence[Question],
    params: SamplingParams | None = None,
    *,
    raw: bool = False,
    progress: bool = False,
) -> tuple[Accuracy, list[Answer]]:
    """Asks all questions, grades the answers, and counts.

    suite: its name in the result. raw: without the chat template (never used where the checkpoint has none).
    A question that fails alone is a wrong answer with `error`.

    Raises: ConfigError; SimsdError where generated code cannot be run.
    """
    own = llm.with_options()  # its totals begin at zero
    if raw or own.tokenizer.chat_template is None:
        completions = own.generate([one.question for one in questions], params, progress=progress)
    else:
        completions = own.chat([messages(one) for one in questions], params, progress=progress)
    answers = []
    with track("grading", len(questions), progress) as advance:
        for question, completion in zip(questions, completions, strict=True):
            right = completion.error is None and grade(question, completion.text)
            answers.append(Answer(question, completion, right))
            advance(1)
    cost = Cost(Stats()).after(completions, own.totals)
    return Accuracy(suite, len(answers), sum(answer.right for answer in answers), cost), answers
