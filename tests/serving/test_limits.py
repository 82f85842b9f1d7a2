"""Connections that bring no request: none lasts, a crowd of them locks nobody out, and none fills the log."""

from __future__ import annotations

import errno
import json
import logging
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from simsd import LLM
from simsd.errors import ConfigError
from simsd.serving import sockets
from simsd.serving.app import create_app
from simsd.serving.server import LoopErrors
from simsd.serving.settings import ServerSettings
from tests.serving.support import CHAT, FREELY, asked, listening
from tests.serving.test_sockets import head, raw

HEAD = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n".encode()  # and more to come
KINDS = {"silent": b"", "half a head": HEAD, "half a body": head(1000) + b"{"}


def answer(connection: socket.socket) -> tuple[int, dict[str, Any]] | None:
    """Status and error object of a connection that the server closes; None where it said nothing."""
    data = b""
    try:
        while part := connection.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    connection.close()
    if not data:
        return None
    first, body = data.split(b"\r\n", 1)[0], data.split(b"\r\n\r\n", 1)[1]
    return int(first.split()[1]), json.loads(body)["error"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_crowd_without_requests_locks_nobody_out(noise: LLM, kind: str) -> None:
    with listening(create_app(noise, ServerSettings()), connections=4) as url:
        crowd = [raw(url, KINDS[kind])]
        assert httpx.get(url + "/health").status_code == 200  # what it sent has been read
        crowd += [raw(url, KINDS[kind]) for _ in range(20)]
        for _ in range(3):
            assert httpx.get(url + "/health").status_code == 200
        told = answer(crowd[0])  # the oldest went first
        assert told is None if kind == "silent" else told is not None and told[0] == 503
        assert told is None or told[1]["code"] == "too_many_connections"
        for one in crowd[1:]:
            one.close()


def test_where_all_are_being_answered_one_more_is_told(noise: LLM, allow: Callable[[int], None]) -> None:
    body = json.dumps(asked(max_tokens=40, simsd={"ignore_eos": True})).encode()
    app = create_app(noise, ServerSettings())
    with listening(app, connections=3) as url:
        busy = [raw(url, head(len(body)) + body) for _ in range(3)]
        while app.state.engine.open_jobs < 3:
            pass
        told = answer(raw(url, b""))
        assert told is not None
        assert (told[0], told[1]["code"]) == (503, "too_many_connections")
        allow(FREELY)
        for one in busy:
            assert b" 200 " in one.recv(10_000).split(b"\r\n")[0]
            one.close()


@pytest.mark.parametrize("kind", KINDS)
def test_who_sends_no_whole_request_in_time_is_given_up(noise: LLM, kind: str) -> None:
    with listening(create_app(noise, ServerSettings(stall_timeout=0.1))) as url:
        told = answer(raw(url, KINDS[kind]))
        assert told is None if kind == "silent" else told is not None and told[0] == 408


def test_a_connection_that_is_used_again_has_the_same_deadline(noise: LLM) -> None:
    with listening(create_app(noise, ServerSettings(stall_timeout=0.1))) as url:
        connection = raw(url, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b" 200 " in connection.recv(10_000)
        connection.sendall(HEAD)
        told = answer(connection)
        assert told is not None
        assert told[0] == 408


def test_what_is_no_http_gets_the_error_object_and_a_line_with_its_sender(
    noise: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    garbage = [b"\x16\x03\x01 no HTTP \xff\r\n\r\n", HEAD + b"x: " + b"y" * 200_000]
    with listening(create_app(noise, ServerSettings())) as url:
        for data in garbage:
            told = answer(raw(url, data))
            assert told is not None
            assert (told[0], told[1]["code"]) == (400, "bad_http")
    found = [one for one in caplog.records if one.getMessage() == "bad_http"]
    assert len(found) == len(garbage)
    assert all(one.__dict__["fields"]["client"] == "127.0.0.1" for one in found)
    assert not any(one.exc_info for one in caplog.records)


def test_nobody_is_advised_to_install_what_is_not_used(noise: LLM, caplog: pytest.LogCaptureFixture) -> None:
    upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-key": "x", "sec-websocket-version": "13"}
    with listening(create_app(noise, ServerSettings())) as url:
        assert httpx.get(url + "/v1/realtime", headers=upgrade).status_code == 404
    assert not any("pip install" in one.getMessage() for one in caplog.records)


def test_a_lack_of_files_is_told_now_and_then_and_other_failures_each_time(caplog: pytest.LogCaptureFixture) -> None:
    report, loop = LoopErrors(), None
    for _ in range(1000):
        report(loop, {"message": "accept", "exception": OSError(errno.EMFILE, "Too many open files")})  # type: ignore[arg-type]
    assert len(caplog.records) == 1
    for _ in range(3):
        report(loop, {"message": "a callback", "exception": KeyError("x")})  # type: ignore[arg-type]
    assert len(caplog.records) == 4
    assert caplog.records[-1].exc_info


def test_the_limit_is_what_the_open_files_leave_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, 1000))
    assert 500 < sockets.most_connections() < 1000 - sockets.ROOM
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    with pytest.raises(ConfigError, match="ulimit -n"):
        sockets.most_connections()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert sockets.most_connections() > 10_000
