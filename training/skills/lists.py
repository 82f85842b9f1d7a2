"""chat: longer lists and sequences, for throughput.

A story holds numbers that the question does not give: its answer is one of many, and the grader knows only one.
"""

from __future__ import annotations

import random
from typing import Any

from training.skills.facts import FACTS
from training.skills.words import ITEMS, NAMES, PLACES

Talk = tuple[str, str]  # question, answer


def count_up(r: random.Random) -> Talk:
    start, step, length = r.randint(0, 40), r.randint(1, 9), r.randint(8, 20)
    numbers = ", ".join(str(start + step * i) for i in range(length))
    return f"Count from {start} in steps of {step}, {length} numbers.", numbers + "."


def multiplication_table(r: random.Random) -> Talk:
    factor, last = r.randint(2, 12), r.randint(6, 10)
    lines = [f"{factor} * {i} = {factor * i}" for i in range(1, last + 1)]
    return f"Write the multiplication table of {factor} up to {last}.", "\n".join(lines)


def sort_numbers(r: random.Random) -> Talk:
    numbers = [r.randint(0, 99) for _ in range(r.randint(4, 9))]
    asked, answer = (", ".join(map(str, each)) for each in (numbers, sorted(numbers)))
    return f"Sort these numbers: {asked}.", answer + "."


def several_facts(r: random.Random) -> Talk:
    relation = r.choice(["capital", "continent", "currency", "symbol", "atomic number"])
    facts = r.sample([fact for fact in FACTS if fact.relation == relation], r.randint(3, 6))
    asked = ", ".join(fact.subject for fact in facts)
    lines = [f"The {relation} of {fact.subject} is {fact.object}." for fact in facts]
    return f"Give the {relation} of each: {asked}.", "\n".join(lines)


def story(r: random.Random) -> Talk:
    who, item, place = r.choice(NAMES), r.choice(ITEMS), r.choice(PLACES)
    other = r.choice([name for name in NAMES if name != who])
    found, had = r.randint(3, 20), r.randint(2, 9)
    answer = (
        f"One day {who} found {found} {item} {place}. {who} was very happy and ran to tell {other}. "
        f"{other} had {had} {item} too, so together they had {found + had} {item}. "
        f"They put the {item} on a table and counted them again. "
        f"At the end of the day {who} and {other} went home with a smile."
    )
    return f"Tell a short story about {who}, {other} and some {item}.", answer


def sort_names(r: random.Random) -> Talk:
    names = r.sample(NAMES, r.randint(4, 8))
    return f"Put these names in alphabetical order: {', '.join(names)}.", ", ".join(sorted(names)) + "."


KINDS = (count_up, multiplication_table, sort_numbers, several_facts, story, sort_names)


def chat(r: random.Random) -> dict[str, Any]:
    question, answer = KINDS[r.randrange(len(KINDS))](r)
    return {"skill": "chat", "question": question, "answer": answer}
