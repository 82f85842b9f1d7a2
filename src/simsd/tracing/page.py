"""The trace as one HTML file: no server, no network, nothing that a token or a prompt could smuggle in."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any


def page(trace: Mapping[str, Any]) -> str:
    """A self-contained page for a `trace_data` object.

    The policy allows this page's own style and script by their hashes and nothing else; the data are JSON in which
    no character can end the element that holds them, and the script writes them as text only.
    """
    style, script = _part("page.css"), _part("page.js")
    values = {"policy": _policy(style, script), "style": style, "script": script, "data": _embedded_json(trace)}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match.group(1)], _part("page.html"))


def _part(name: str) -> str:
    return (resources.files("simsd.tracing") / name).read_text("utf-8").replace("\r\n", "\n")


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _embedded_json(value: Any) -> str:
    """JSON that is safe inside a script element: ASCII, and without the characters that markup is made of."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
