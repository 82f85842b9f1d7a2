"""Text from outside, such as names of files, made fit to be shown."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """The text with what cannot be shown spelt out: control characters, which a terminal would obey, and bytes of a
    name that are no UTF-8. keep: control characters that stay."""
    return "".join(char if char in keep or char.isprintable() else ascii(char)[1:-1] for char in text)
