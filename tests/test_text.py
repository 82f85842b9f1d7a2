from __future__ import annotations

import pytest

from simsd.text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ä 語 [/red]", "plain ä 語 [/red]"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\x9b2J", "\\x9b2J"),
        ("\udcff", "\\udcff"),
        ("\u202egpj", "\\u202egpj"),
    ],
    ids=ascii,
)
def test_what_a_terminal_would_obey_is_spelt_out(text: str, shown: str) -> None:
    assert printable(text) == shown
    shown.encode()


def test_some_may_stay() -> None:
    assert printable("a\n\x00", keep="\n") == "a\n\\x00"
