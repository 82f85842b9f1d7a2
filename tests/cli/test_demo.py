from __future__ import annotations

import json

from tests.cli.conftest import Run
from tests.cli.fake import FakeLLM


def test_rows_of_all_methods_on_both_schedules(run: Run, llm: FakeLLM) -> None:
    result = run("demo", "--json", "--questions", "3")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [(row["schedule"], row["method"]) for row in found["rows"]] == [
        (schedule, method) for schedule in ("static", "dynamic") for method in ("none", "simsd", "exact")
    ]
    for row in found["rows"]:
        assert row["ratio_to_static"] == 1.0  # the fake is equally fast in every way
        assert row["same_text"] == 1.0
        assert row["acceptance_rate"] == 0.75
    assert found["questions"] == 3


def test_all_skills_are_asked_and_measured_alternately(run: Run, llm: FakeLLM) -> None:
    run("demo", "--json", "--questions", "5")
    asked = [messages[0]["content"] for kind, messages, _ in llm.calls if kind == "chat"]
    assert len(asked) == 6 * (5 + 1)  # six ways, five questions and a warm-up
    measured = asked[6:]
    assert [measured[6 * i : 6 * i + 6] for i in range(5)] == [[measured[6 * i]] * 6 for i in range(5)]
    assert len(set(measured)) == 5


def test_the_table_shows_an_answer_first(run: Run) -> None:
    text = run("demo", "--questions", "2").stdout
    assert text.index("Question") < text.index("same text") < text.index("tokens/s:")
