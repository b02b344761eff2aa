from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.cache.plan import FOREIGN, Resident, fitting_window, plan_admission, plan_evictions

residents = st.lists(
    st.builds(
        Resident,
        key=st.uuids().map(str),
        nbytes=st.integers(1, 100),
        next_use=st.integers(0, 20) | st.just(FOREIGN),
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


def test_other_data_sets_go_before_any_of_this_one_and_the_oldest_of_them_first() -> None:
    here = [kept("mine", 10, 10**9), kept("young", 10, FOREIGN, 9), kept("old", 10, FOREIGN, 3)]
    assert plan_evictions(here, 20, keep_until=0) == [here[2], here[1]]


def test_what_is_needed_as_soon_stays_and_the_incoming_shard_passes_by() -> None:
    here = [kept("a", 10, 7), kept("b", 10, 8)]
    assert plan_evictions(here, 10, keep_until=8) is None
    assert plan_evictions(here, 20, keep_until=7) is None
    assert plan_evictions(here, 10, keep_until=7) == [here[1]]


def test_nothing_is_evicted_while_there_is_room() -> None:
    assert plan_evictions([kept("a", 10, FOREIGN)], 0, keep_until=0) == []
    assert plan_admission([kept("a", 10, 9)], nbytes=5, reserved=5, budget=20, keep_until=0) == []


def test_a_shard_larger_than_the_budget_evicts_nothing() -> None:
    assert plan_admission([kept("a", 10, FOREIGN)], nbytes=21, reserved=0, budget=20, keep_until=0) is None


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


def epochs_hit_ratio(*, shards: int, room: int, epochs: int, policy: str) -> float:
    """Openings that hit, over all but the first epoch, with one shard in use at a time and random orders."""
    rng = random.Random(1)
    cached: dict[int, int] = {}  # shard: when it came or was last used
    hits = clock = 0
    for epoch in range(epochs):
        order = rng.sample(range(shards), shards)
        place = {shard: position for position, shard in enumerate(order)}
        for position, shard in enumerate(order):
            clock += 1
            if shard in cached:
                hits += epoch > 0
                if policy == "lru":
                    cached[shard] = clock
                continue
            if policy == "lru":
                while len(cached) >= room:
                    del cached[min(cached, key=lambda s: cached[s])]
            else:
                here = [
                    Resident(str(s), 1, place[s] if place[s] >= position else shards, came)
                    for s, came in cached.items()
                ]
                keep_until = shards - 1 if policy == "far" else position
                victims = plan_admission(here, nbytes=1, reserved=0, budget=room, keep_until=keep_until)
                if victims is None:
                    continue  # read past the cache
                for victim in victims:
                    del cached[int(victim.key)]
            cached[shard] = clock
    return hits / (shards * (epochs - 1))


@pytest.mark.parametrize("policy", ["soon", "far"])
def test_a_cache_of_half_the_data_hits_half_of_the_time_where_lru_does_not(policy: str) -> None:
    ratio = epochs_hit_ratio(shards=60, room=30, epochs=12, policy=policy)
    assert 0.47 <= ratio <= 0.5
    assert epochs_hit_ratio(shards=60, room=30, epochs=12, policy="lru") < 0.25


@pytest.mark.parametrize(
    ("budget", "sizes", "window"),
    [(1000, [50, 150], 10), (1000, [101], 9), (10, [100, 100], 1), (10, [], 1), (10, [0], 10)],
)
def test_the_largest_window_that_fits_is_whole_shards_and_at_least_one(
    budget: int, sizes: list[int], window: int
) -> None:
    assert fitting_window(budget, np.array(sizes, np.int64)) == window
