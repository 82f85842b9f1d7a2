"""code: small Python functions with asserts, in the shape of MBPP."""

from __future__ import annotations

import random
from typing import Any

FILTERS = {
    "": None,
    "even": "x % 2 == 0",
    "odd": "x % 2 != 0",
    "positive": "x > 0",
    "negative": "x < 0",
    "greater than {k}": "x > {k}",
    "less than {k}": "x < {k}",
    "divisible by {k}": "x % {k} == 0",
}
MAPS = {
    "numbers": "x",
    "squares of the numbers": "x * x",
    "cubes of the numbers": "x * x * x",
    "doubles of the numbers": "x * 2",
    "absolute values of the numbers": "abs(x)",
    "negated numbers": "-x",
    "numbers plus {j}": "x + {j}",
    "numbers minus {j}": "x - {j}",
    "numbers times {j}": "x * {j}",
}
# reduction: (name, task, first line, update, last line); {m} is the mapped number, {what} its description
REDUCTIONS = {
    "sum": ("sum_of", "find the sum of the {what}", "total = 0", "total += {m}", "return total"),
    "list": ("list_of", "return a list of the {what}", "result = []", "result.append({m})", "return result"),
    "count": ("count_of", "count the numbers", "count = 0", "count += 1", "return count"),
    "max": ("largest_of", "find the largest of the {what}", "result = []", "result.append({m})", "return max(result)"),
    "min": (
        "smallest_of",
        "find the smallest of the {what}",
        "result = []",
        "result.append({m})",
        "return min(result)",
    ),
    "product": ("product_of", "find the product of the {what}", "total = 1", "total *= {m}", "return total"),
    "sorted": (
        "sorted_of",
        "return a sorted list of the {what}",
        "result = []",
        "result.append({m})",
        "return sorted(result)",
    ),
}
STRINGS = {
    "reverse a string": ("reverse_string", ["return text[::-1]"]),
    "count the vowels in a string": (
        "count_vowels",
        ["count = 0", "for ch in text:", "    if ch in 'aeiou':", "        count += 1", "return count"],
    ),
    "check if a string is a palindrome": ("is_palindrome", ["return text == text[::-1]"]),
    "count the words in a string": ("count_words", ["return len(text.split())"]),
    "remove all spaces from a string": ("remove_spaces", ["return text.replace(' ', '')"]),
    "find the longest word in a string": (
        "longest_word",
        [
            "best = ''",
            "for word in text.split():",
            "    if len(word) > len(best):",
            "        best = word",
            "return best",
        ],
    ),
    "turn a string into upper case": ("to_upper", ["return text.upper()"]),
    "join the words of a string with dashes": ("join_words", ["return '-'.join(text.split())"]),
}
TEXTS = ["level", "a big red bus", "hello world", "madam", "the quick brown fox", "noon", "open the door", "tea"]
# Every list ends so, that each filter lets something through and max() has something to choose from.
ENDING = [4, 7, 36, -6, -5, 90, 45, -63, -40, 63]


def code(r: random.Random) -> dict[str, Any]:
    if r.random() < 0.2:
        return string_function(r)
    return list_function(r)


def string_function(r: random.Random) -> dict[str, Any]:
    task = r.choice(list(STRINGS))
    name, body = STRINGS[task]
    calls = [repr(text) for text in r.sample(TEXTS, 3)]
    return sample(f"Write a function {name} to {task}.", name, "text", body, calls)


def list_function(r: random.Random) -> dict[str, Any]:
    k, j = r.randint(2, 9), r.randint(2, 9)
    which = r.choice(list(FILTERS))
    what = r.choice(list(MAPS))
    mapped = MAPS[what].format(j=j)
    test = FILTERS[which]
    what = what.format(j=j)
    name, task, first, update, last = REDUCTIONS[r.choice(list(REDUCTIONS))]
    name += "_numbers"
    where = f"that are {which.format(k=k)} in a list" if which else "in a list"
    update = update.format(m=mapped)
    inner = [f"    if {test.format(k=k)}:", f"        {update}"] if test else [f"    {update}"]
    calls = []
    while len(calls) < 3:
        numbers = [r.randint(-20, 40) for _ in range(r.randint(4, 9))]
        calls.append(repr(numbers + ENDING))
    question = f"Write a function {name} to {task.format(what=what)} {where}."
    return sample(question, name, "nums", [first, "for x in nums:", *inner, last], calls)


def sample(question: str, name: str, argument: str, body: list[str], calls: list[str]) -> dict[str, Any]:
    source = f"def {name}({argument}):\n" + "\n".join("    " + line for line in body)
    scope: dict[str, Any] = {}
    exec(source, scope)  # our own text: the reference answer
    tests = [f"assert {name}({call}) == {eval(f'{name}({call})', scope)!r}" for call in calls]
    return {"skill": "code", "question": question, "answer": source, "tests": tests}
