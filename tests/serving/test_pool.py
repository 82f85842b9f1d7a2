from __future__ import annotations

import pytest

from simsd import LLM, ConfigError
from simsd.serving.errors import ApiError
from simsd.serving.pool import Pool


def test_equal_options_share_an_llm_however_they_are_said(noise: LLM) -> None:
    pool = Pool(noise, 4)
    default = pool.lease({})
    assert default is not noise
    assert default._target is noise._target
    assert pool.lease({"method": "exact"}) is default
    assert pool.lease({"method": "exact", "drafter": "self"}) is default
    assert pool.lease({}, trace=True) is not default
    assert pool.lease({"method": "none"}) is not default
    assert (len(pool), pool.leased) == (3, 5)


def test_the_one_that_was_idle_longest_makes_room(noise: LLM) -> None:
    pool = Pool(noise, 2)
    one, two = (pool.lease({"num_speculative_tokens": window}) for window in (1, 2))
    pool.release(one)
    pool.release(two)
    assert pool.lease({"num_speculative_tokens": 1}) is one
    pool.release(one)
    pool.lease({"num_speculative_tokens": 3})
    assert pool.lease({"num_speculative_tokens": 1}) is one
    assert len(pool) == 2
    with pytest.raises(ApiError) as caught:
        pool.lease({"num_speculative_tokens": 2})
    assert (caught.value.status, caught.value.code) == (429, "options_busy")


def test_several_leases_are_given_back_one_by_one(noise: LLM) -> None:
    pool = Pool(noise, 1)
    llm = pool.lease({}, count=3)
    pool.release(llm)
    with pytest.raises(ApiError):
        pool.lease({"method": "none"})
    pool.release(llm, 2)
    assert pool.leased == 0
    assert pool.lease({"method": "none"}) is not llm


def test_a_discarded_one_is_not_lent_again(noise: LLM) -> None:
    pool = Pool(noise, 1)
    broken = pool.lease({})
    pool.discard(broken)
    pool.release(broken)
    assert pool.lease({}) is not broken
    assert pool.leased == 1


@pytest.mark.parametrize("changes", [{"method": "x"}, {"drafter": "model"}, {"drafter": "trajectory"}])
def test_options_that_cannot_be_are_refused_and_take_no_room(noise: LLM, changes: dict[str, str]) -> None:
    pool = Pool(noise, 1)
    with pytest.raises(ConfigError, match=next(iter(changes))):
        pool.lease(changes)
    assert len(pool) == 0
