"""math: word problems with worked steps, in the shape of GSM8K. One function a kind of problem."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from training.skills.words import ITEMS, NAMES, PLACES


@dataclass(frozen=True)
class Scene:
    """Who and what a problem is about, and the source of its numbers."""

    a: str
    b: str
    item: str
    other: str
    place: str
    r: random.Random

    def n(self, low: int, high: int) -> int:
        return self.r.randint(low, high)


Problem = tuple[str, list[str], int]  # question, steps, answer


def gain(s: Scene) -> Problem:
    have, more = s.n(3, 60), s.n(2, 40)
    question = (
        f"{s.a} has {have} {s.item}. {s.b} gives {s.a} {more} more {s.item}. How many {s.item} does {s.a} have now?"
    )
    return question, [f"{s.a} has {have} + {more} = {have + more} {s.item}."], have + more


def sell(s: Scene) -> Problem:
    had = s.n(20, 90)
    sold = s.n(2, had - 1)
    question = f"{s.a} had {had} {s.item} and sold {sold} of them {s.place}. How many {s.item} are left?"
    return question, [f"{s.a} has {had} - {sold} = {had - sold} {s.item} left."], had - sold


def buy_boxes(s: Scene) -> Problem:
    boxes, each = s.n(2, 12), s.n(2, 12)
    question = f"{s.a} buys {boxes} boxes with {each} {s.item} in each box. How many {s.item} does {s.a} buy?"
    return question, [f"{s.a} buys {boxes} * {each} = {boxes * each} {s.item}."], boxes * each


def share(s: Scene) -> Problem:
    friends, each = s.n(2, 10), s.n(2, 12)
    total = friends * each
    question = f"{s.a} shares {total} {s.item} equally among {friends} friends. How many {s.item} does each friend get?"
    return question, [f"Each friend gets {total} / {friends} = {each} {s.item}."], each


def pack_bags(s: Scene) -> Problem:
    bags, each, loose = s.n(2, 10), s.n(2, 10), s.n(2, 30)
    packed = bags * each
    question = (
        f"{s.a} packs {bags} bags with {each} {s.item} each and keeps {loose} {s.item} loose. "
        f"How many {s.item} are there in total?"
    )
    steps = [
        f"The bags hold {bags} * {each} = {packed} {s.item}.",
        f"In total there are {packed} + {loose} = {packed + loose} {s.item}.",
    ]
    return question, steps, packed + loose


def spend(s: Scene) -> Problem:
    count, price, others = s.n(2, 9), s.n(2, 9), s.n(2, 9)
    first, second = count * price, others * 2
    question = (
        f"{s.a} buys {count} {s.item} for {price} dollars each and {others} {s.other} for 2 dollars each. "
        f"How much does {s.a} spend?"
    )
    steps = [
        f"The {s.item} cost {count} * {price} = {first} dollars.",
        f"The {s.other} cost {others} * 2 = {second} dollars.",
        f"{s.a} spends {first} + {second} = {first + second} dollars.",
    ]
    return question, steps, first + second


def times_as_many(s: Scene) -> Problem:
    have = s.n(5, 40)
    factor = s.n(2, 4)
    theirs = have * factor
    question = f"{s.a} has {have} {s.item}. {s.b} has {factor} times as many. How many {s.item} do they have together?"
    steps = [
        f"{s.b} has {factor} * {have} = {theirs} {s.item}.",
        f"Together they have {have} + {theirs} = {have + theirs} {s.item}.",
    ]
    return question, steps, have + theirs


def three_days(s: Scene) -> Problem:
    monday = s.n(10, 50)
    more = s.n(2, 9)
    fewer = s.n(2, 9)
    tuesday = monday + more
    question = (
        f"{s.a} collects {monday} {s.item} on Monday, {more} more on Tuesday than on Monday, and {fewer} fewer on "
        f"Wednesday than on Tuesday. How many {s.item} does {s.a} collect on Wednesday?"
    )
    steps = [
        f"On Tuesday {s.a} collects {monday} + {more} = {tuesday} {s.item}.",
        f"On Wednesday {s.a} collects {tuesday} - {fewer} = {tuesday - fewer} {s.item}.",
    ]
    return question, steps, tuesday - fewer


def read_pages(s: Scene) -> Problem:
    morning = s.n(2, 9)
    evening = s.n(2, 9)
    days = s.n(2, 7)
    daily = morning + evening
    question = (
        f"{s.a} reads {morning} pages every morning and {evening} pages every evening. "
        f"How many pages does {s.a} read in {days} days?"
    )
    steps = [
        f"Each day {s.a} reads {morning} + {evening} = {daily} pages.",
        f"In {days} days that is {daily} * {days} = {daily * days} pages.",
    ]
    return question, steps, daily * days


def money_left(s: Scene) -> Problem:
    money = s.n(20, 99)
    count = s.n(2, 9)
    price = s.n(2, 9)
    while count * price >= money:
        count, price = s.n(2, 9), s.n(2, 9)
    cost = count * price
    question = (
        f"{s.a} has {money} dollars and buys {count} {s.item} that cost {price} dollars each. "
        f"How many dollars are left?"
    )
    steps = [
        f"The {s.item} cost {count} * {price} = {cost} dollars.",
        f"{s.a} has {money} - {cost} = {money - cost} dollars left.",
    ]
    return question, steps, money - cost


def rows(s: Scene) -> Problem:
    count, each = s.n(2, 9), s.n(2, 9)
    more = s.n(2, 9)
    total = count * each
    question = (
        f"{s.a} puts {total} {s.item} into {count} equal rows and then adds {more} {s.item} to each row. "
        f"How many {s.item} are in each row?"
    )
    steps = [
        f"Each row has {total} / {count} = {each} {s.item}.",
        f"After adding there are {each} + {more} = {each + more} {s.item} in each row.",
    ]
    return question, steps, each + more


def give_half(s: Scene) -> Problem:
    have = s.n(2, 30) * 2
    found = s.n(2, 20)
    half = have // 2
    question = (
        f"{s.a} has {have} {s.item}. {s.a} gives half of them to {s.b} and then finds {found} more {s.place}. "
        f"How many {s.item} does {s.a} have?"
    )
    steps = [
        f"Half of the {s.item} is {have} / 2 = {half}.",
        f"{s.a} has {half} + {found} = {half + found} {s.item}.",
    ]
    return question, steps, half + found


def ages(s: Scene) -> Problem:
    age = s.n(4, 30)
    older = s.n(3, 25)
    theirs = age + older
    question = f"{s.a} is {age} years old. {s.b} is {older} years older than {s.a}. What is the sum of their ages?"
    steps = [
        f"{s.b} is {age} + {older} = {theirs} years old.",
        f"The sum of their ages is {age} + {theirs} = {age + theirs}.",
    ]
    return question, steps, age + theirs


def bus(s: Scene) -> Problem:
    trips, people, children = s.n(3, 12), s.n(2, 9), s.n(2, 20)
    while children >= trips * people:
        children = s.n(2, 20)
    total = trips * people
    question = (
        f"A bus makes {trips} trips and carries {people} people on each trip. {children} of the people are children. "
        f"How many are adults?"
    )
    steps = [
        f"The bus carries {trips} * {people} = {total} people.",
        f"There are {total} - {children} = {total - children} adults.",
    ]
    return question, steps, total - children


KINDS = (
    gain,
    sell,
    buy_boxes,
    share,
    pack_bags,
    spend,
    times_as_many,
    three_days,
    read_pages,
    money_left,
    rows,
    give_half,
    ages,
    bus,
)


def math(r: random.Random) -> dict[str, Any]:
    a, b = r.sample(NAMES, 2)
    item, other = r.sample(ITEMS, 2)
    place = r.choice(PLACES)
    question, steps, answer = KINDS[r.randrange(len(KINDS))](Scene(a, b, item, other, place, r))
    return {"skill": "math", "question": question, "answer": "\n".join(steps) + f"\n#### {answer}"}
