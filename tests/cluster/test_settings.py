from __future__ import annotations

from typing import Any

import pytest

from simsd.cluster.settings import Fleet, ReplicaPlan
from simsd.errors import ConfigError
from simsd.serving.settings import ServerSettings


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"min_replicas": 0}, "min_replicas is 0"),
        ({"max_replicas": 0}, "max_replicas is 0"),
        ({"min_replicas": 3, "max_replicas": 2}, "max_replicas is 2, less than min_replicas, 3"),
        ({"max_replicas": 2, "target_ongoing_requests": 0}, "target_ongoing_requests is 0"),
        ({"min_replicas": 2, "target_ongoing_requests": 4}, "there is only one, 2; give a larger max_replicas"),
    ],
)
def test_bounds_that_mean_nothing_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Fleet(**given)


def test_equal_bounds_are_a_fixed_number() -> None:
    assert Fleet().fixed
    assert Fleet(2, 2).fixed
    assert not Fleet(1, 2).fixed


@pytest.mark.parametrize(
    ("llm", "threads", "there", "cpus", "gpus"),
    [
        ({}, 1, 0, 1, 0),
        ({}, 3, 0, 3, 0),
        ({}, 3, 8, 1, 1),  # what is chosen automatically is a GPU, where there are any
        ({"device": "cpu"}, 2, 8, 2, 0),
        ({"device": "cpu", "tensor_parallel_size": 2}, 2, 8, 2, 0),  # the ranks share the threads,
        ({"device": "cpu", "tensor_parallel_size": 4}, 1, 8, 4, 0),  # but each has one at least
        ({"device": "cuda"}, 1, 0, 1, 1),  # a cluster may grow
        ({"device": "auto", "tensor_parallel_size": 2}, 1, 8, 1, 2),
        ({"device": "cuda:0", "draft_device": "cuda:1"}, 1, 8, 1, 2),
        ({"draft_device": "cuda:3"}, 1, 8, 1, 4),
    ],
)
def test_a_replica_reserves_what_it_uses(
    llm: dict[str, Any], threads: int, there: float, cpus: float, gpus: float
) -> None:
    assert ReplicaPlan(llm=llm, threads=threads).resources(there) == {"num_cpus": cpus, "num_gpus": gpus}


def test_a_replica_takes_in_what_it_decodes_and_what_may_wait() -> None:
    assert ReplicaPlan(server=ServerSettings(max_waiting=7), max_num_seqs=4).capacity == 11
    with pytest.raises(ConfigError, match="max_num_seqs is 0"):
        ReplicaPlan(max_num_seqs=0)
