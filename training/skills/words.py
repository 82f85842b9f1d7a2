"""The words that the questions are filled with."""

from __future__ import annotations

NAMES = (
    "Ava Ben Carl Dana Elif Finn Gia Hana Ivan June Kofi Lena Mia Noah Omar Pia Quinn Rosa Sam Tara "
    "Uma Vera Will Yara Zoe Amir Bella Chen Diego Emma Farid Grace Hugo Iris Jack Kira Leo Maya Nina Oscar"
).split()
ITEMS = (
    "apples books cards coins cookies cups eggs flowers marbles muffins oranges pencils pens plates plums "
    "shells shirts stamps stickers tickets toys bottles boxes bricks candles chairs lemons peaches stones"
).split()
PLACES = (
    "at the market",
    "in the park",
    "at school",
    "at the shop",
    "in the garden",
    "at home",
    "at the fair",
    "by the lake",
)
