from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.cache.plan import UNUSED, Resident, allowance, fitting_window, plan_admission, plan_evictions

residents = st.lists(
    st.builds(
        Resident,
        key=st.uuids().map(str),
        nbytes=st.integers(1, 100),
        next_use=st.integers(0, 20) | st.just(UNUSED),
        mtime_ns=st.integers(0, 5),
    ),
    max_size=12,
)


def kept(key: str, nbytes: int, next_use: int, mtime_ns: int = 0) -> Resident:
    return Resident(key, nbytes, next_use, mtime_ns)


def test_the_farthest_next_use_goes_first() -> None:
    here = [kept("near", 10, 5), kept("far", 10, 50), kept("middle", 10, 20)]
    assert plan_evictions(here, 10, keep_until=0) == [here[1]]
    assert plan_evictions(here, 11, keep_until=0) == [here[1], here[2]]


def test_what_nobody_uses_goes_before_anything_that_is_used_and_the_oldest_of_it_first() -> None:
    here = [kept("mine", 10, 10**9), kept("young", 10, UNUSED, 9), kept("old", 10, UNUSED, 3)]
    assert plan_evictions(here, 20, keep_until=0) == [here[2], here[1]]


def test_what_is_needed_as_soon_stays_and_the_incoming_shard_passes_by() -> None:
    here = [kept("a", 10, 7), kept("b", 10, 8)]
    assert plan_evictions(here, 10, keep_until=8) is None
    assert plan_evictions(here, 20, keep_until=7) is None
    assert plan_evictions(here, 10, keep_until=7) == [here[1]]


def test_nothing_is_evicted_while_there_is_room() -> None:
    assert plan_evictions([kept("a", 10, UNUSED)], 0, keep_until=0) == []
    assert plan_admission([kept("a", 10, 9)], nbytes=5, reserved=5, budget=20, keep_until=0) == []


def test_a_shard_larger_than_the_budget_evicts_nothing() -> None:
    assert plan_admission([kept("a", 10, UNUSED)], nbytes=21, reserved=0, budget=20, keep_until=0) is None


@settings(deadline=None, max_examples=100)
@given(here=residents, needed=st.integers(-5, 400), keep_until=st.integers(-1, 21))
def test_evictions_suffice_spare_what_is_nearer_and_hold_no_one_too_many(
    here: list[Resident], needed: int, keep_until: int
) -> None:
    chosen = plan_evictions(here, needed, keep_until=keep_until)
    may_go = [resident for resident in here if resident.next_use > keep_until]
    if chosen is None:
        assert sum(resident.nbytes for resident in may_go) < needed
        return
    assert set(chosen) <= set(may_go)
    assert len(set(chosen)) == len(chosen)
    freed = sum(resident.nbytes for resident in chosen)
    assert freed >= needed
    assert all(freed - resident.nbytes < needed for resident in chosen)


@settings(deadline=None, max_examples=100)
@given(here=residents, nbytes=st.integers(1, 200), reserved=st.integers(0, 100), budget=st.integers(1, 600))
def test_an_admission_keeps_the_budget(here: list[Resident], nbytes: int, reserved: int, budget: int) -> None:
    victims = plan_admission(here, nbytes=nbytes, reserved=reserved, budget=budget, keep_until=3)
    if victims is not None:
        left = sum(resident.nbytes for resident in here if resident not in victims)
        assert left + reserved + nbytes <= budget


@pytest.mark.parametrize(
    ("budget", "used", "free", "min_free", "allowed"),
    [
        (100, 30, 1000, 50, 100),  # the budget is the limit
        (100, 30, 60, 50, 40),  # the disk is
        (100, 30, 50, 50, 30),  # nothing more
        (100, 30, 30, 50, 10),  # others have taken what should be free: the cache gives back
        (100, 30, 0, 50, 0),
    ],
)
def test_the_cache_grows_to_its_budget_and_leaves_the_floor_of_the_disk_free(
    budget: int, used: int, free: int, min_free: int, allowed: int
) -> None:
    assert allowance(budget, used=used, free=free, min_free=min_free) == allowed


@pytest.mark.parametrize(
    ("budget", "sizes", "window"),
    [(1000, [50, 150], 10), (1000, [101], 9), (10, [100, 100], 1), (10, [], 1), (10, [0], 10)],
)
def test_the_largest_window_that_fits_is_whole_shards_and_at_least_one(
    budget: int, sizes: list[int], window: int
) -> None:
    assert fitting_window(budget, np.array(sizes, np.int64)) == window
