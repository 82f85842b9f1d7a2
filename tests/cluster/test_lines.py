"""Lines of other processes, as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from simsd.cluster.lines import as_json


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ('{"event": "ready", "url": "é"}', {"event": "ready", "url": "é"}),
        (
            '\x1b[36m(ServeReplica:simsd:Replica pid=7)\x1b[0m {"event": "request", "level": "INFO"}',
            {"event": "request", "level": "INFO", "process": "ServeReplica:simsd:Replica pid=7"},
        ),
        (
            "(ServeController pid=8, ip=10.0.0.2) WARNING 2026-01-01 12:00:00 controller 8 -- it crashed",
            {
                "level": "WARNING",
                "event": "output",
                "text": "WARNING 2026-01-01 12:00:00 controller 8 -- it crashed",
                "process": "ServeController pid=8, ip=10.0.0.2",
            },
        ),
        ("Traceback (most recent call last):", {"level": "INFO", "event": "output"}),
        ("(raylet) [1, 2]", {"event": "output", "text": "[1, 2]", "process": "raylet"}),
        ("12", {"event": "output", "text": "12"}),
        ('{"event": "cut of', {"event": "output", "text": '{"event": "cut of'}),
    ],
)
def test_every_line_is_one_object(line: str, fields: dict[str, str]) -> None:
    found = json.loads(as_json(line))
    assert found.items() >= fields.items()
    assert ("time" in found) == (found["event"] == "output")


WRITER = """
import os, subprocess, sys
from simsd.cluster.lines import json_lines
print("before", file=sys.stderr)
with json_lines():
    print("(a pid=1)", '{"event": "one"}', file=sys.stderr)
    os.write(2, b"\\xff not Python's\\n\\n")
    subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('no newline')"])
print("after", file=sys.stderr)
"""


def test_all_that_goes_to_standard_error_meanwhile_is_json() -> None:
    done = subprocess.run([sys.executable, "-c", WRITER], stderr=subprocess.PIPE, env=os.environ, check=True)
    before, *lines, after = done.stderr.decode().splitlines()
    assert (before, after) == ("before", "after")
    found = [json.loads(line) for line in lines]
    assert found[0] == {"event": "one", "process": "a pid=1"}
    assert [one["text"] for one in found[1:]] == ["\ufffd not Python's", "no newline"]
