"""Makes a peer (see peer.py) of a Python function; run by compare.py, in a process of its own.

    python adapter.py FILE.py:FUNCTION KEY=VALUE ...

FUNCTION(**options) loads what it needs, untimed, and returns another function,
answer(ids: list[int], max_tokens: int) -> list[int], the tokens that come after the prompt `ids`. Values are JSON where
they can be read as such, otherwise text.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def find(where: str) -> Callable[..., Callable[[list[int], int], list[int]]]:
    """The function at FILE.py:FUNCTION or MODULE:FUNCTION. Raises ImportError, AttributeError."""
    module, _, name = where.rpartition(":")
    if not module.endswith(".py"):
        return getattr(importlib.import_module(module), name)
    path = Path(module).resolve()
    sys.path.insert(0, str(path.parent))  # a script's neighbours are found, as when it is run
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return getattr(loaded, name)


def value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def main() -> None:
    where, *words = sys.argv[1:]
    options = dict(word.split("=", 1) for word in words)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the function prints goes to the errors, never between the replies

    def reply(**what: Any) -> None:
        replies.write(json.dumps(what) + "\n")
        replies.flush()

    answer = find(where)(**{name: value(text) for name, text in options.items()})
    reply(ready=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            found = {"ids": [int(i) for i in answer(asked["ids"], asked["max_tokens"])]}
        except Exception as error:  # a stranger's code: its reason is told, and the next prompt is asked
            found = {"error": f"{type(error).__name__}: {error}"}
        reply(number=asked["number"], **found)


if __name__ == "__main__":
    main()
