"""Logs for machines: one JSON object a line, with the request's id. No prompt and no answer is ever logged."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, TextIO

MOST = 200  # characters of a value: a path may be as long as its client likes

# What uvicorn says about a request that has a line of ours, with its sender or its id.
TOLD = frozenset({"Invalid HTTP request received.", "ASGI callable returned without completing response."})

LOGGER = logging.getLogger("simsd.serving")


def event(name: str, level: int = logging.INFO, *, failure: BaseException | None = None, **fields: Any) -> None:
    """Logs what happened, with its figures. failure: an exception whose traceback belongs in the log."""
    short = {key: shortened(value) if isinstance(value, str) else value for key, value in fields.items()}
    LOGGER.log(level, name, extra={"fields": short}, exc_info=failure)


def shortened(text: str, most: int = MOST) -> str:
    """A text without its middle, if it is longer than `most`."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-(most // 2 - 5) :]}"


class JsonLines(logging.Formatter):
    """{"time", "level", "event", ...the event's fields, "traceback" if there is one}."""

    def format(self, record: logging.LogRecord) -> str:
        line = _head(record) | getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """The same for people: time, level, event, and name=value pairs."""

    def format(self, record: logging.LogRecord) -> str:
        head = _head(record)
        pairs = [f"{name}={_short(value)}" for name, value in getattr(record, "fields", {}).items()]
        line = " ".join([head["time"], head["level"], head["event"], *pairs])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


FORMATS = {"json": JsonLines, "text": TextLines}


def to_stream(style: str, stream: TextIO | None = None) -> None:
    """Sends the server's log, and uvicorn's warnings, to a stream (standard error) in one of `FORMATS`."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(FORMATS[style]())
    handler.addFilter(lambda record: record.getMessage() not in TOLD)
    for name, level in ((LOGGER.name, logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


def _head(record: logging.LogRecord) -> dict[str, Any]:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return {"time": f"{whole}.{record.msecs:03.0f}Z", "level": record.levelname, "event": record.getMessage()}


def _short(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if text and text.isprintable() and " " not in text else json.dumps(text)
