"""`simsd serve --ray`: what is refused before a cluster is started."""

from __future__ import annotations

import socket
import sys

import pytest

from tests.cli.conftest import Run


@pytest.mark.parametrize(
    "flags",
    [
        ("--ray-address", "auto"),
        ("--min-replicas", "2"),
        ("--max-replicas", "2"),
        ("--target-ongoing-requests", "8"),
    ],
)
def test_flags_of_many_replicas_need_ray(run: Run, flags: tuple[str, ...]) -> None:
    found = run("serve", *flags)
    assert found.exit_code == 2
    assert found.stderr == f"simsd: {flags[0]} is for many replicas; add --ray.\n"


@pytest.mark.parametrize("missing", ["ray", "ray.serve"])
def test_without_the_extra_it_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    found = run("serve", "--ray")
    assert found.exit_code == 2
    assert "pip install 'simsd[ray]'" in found.stderr
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--min-replicas", "2", "--max-replicas", "1"), "max_replicas is 1, less than min_replicas, 2"),
        (("--min-replicas", "0"), "min_replicas is 0"),
        (("--max-num-seqs", "0"), "max_num_seqs is 0"),
        (("--ray-address", "auto", "--port", "0"), "with --ray-address name one"),
        (("--ray-address", "127.0.0.1:1"), "the Ray cluster '127.0.0.1:1' cannot be joined ([Errno"),
        (("--ray-address", "ray://127.0.0.1:1"), "the Ray cluster 'ray://127.0.0.1:1' cannot be joined ([Errno"),
        (("--ray-address", "127.0.0.1:99999"), "the Ray cluster '127.0.0.1:99999' cannot be joined"),
        (("./nowhere", "--port", "0"), "there is no checkpoint folder './nowhere'"),
    ],
)
def test_mistakes_are_one_sentence(run: Run, flags: tuple[str, ...], says: str) -> None:
    pytest.importorskip("ray")
    found = run("serve", "--ray", *flags)
    assert found.exit_code == 2
    assert says in found.stderr
    assert found.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_told_before_a_cluster_is_started(run: Run) -> None:
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = run("serve", "--ray", "--port", str(port))
    assert found.exit_code == 2
    assert found.stderr.startswith(f"simsd: cannot listen on 127.0.0.1, port {port}")
    assert found.stderr.count("\n") == 1
