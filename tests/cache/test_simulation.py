"""The cache's decisions on recorded accesses against the offline optimum: Belady's rule with bypass, equal shards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from forebay.benchmarks.repeated_shards import RepeatedShards
from forebay.cache.simulation import HitRatios, Step, hit_ratios, in_turn, record_epoch
from forebay.sharding import EpochOrder

SHARDS, ROOM, ROWS, BATCH, EPOCHS = 160, 80, 32, 16, 4


def epochs(seed: int, window: int, *, shuffle: bool = True) -> list[EpochOrder]:
    rows = np.full(SHARDS, ROWS, np.int64)
    orders = [EpochOrder(rows, fingerprint="f00d", seed=seed, epoch=0, shuffle=shuffle, window=window)]
    while len(orders) < EPOCHS:
        orders.append(orders[-1].following())
    return orders


def read(orders: list[EpochOrder], *, reader: int = 0, rank: int = 0, world_size: int = 1) -> Iterator[Step]:
    for order in orders:
        yield from record_epoch(
            order, reader=reader, rank=rank, world_size=world_size, batch=BATCH, counted=order.epoch > 0
        )


def assert_near_the_optimum(ratios: HitRatios) -> None:
    assert ratios.optimum >= ratios.ours >= ratios.optimum - 0.01
    assert ratios.lru < ratios.optimum / 2


@pytest.mark.parametrize("window", [1, 8, 32])
def test_whole_epochs_in_windows_hit_as_often_as_is_possible(window: int) -> None:
    ratios = hit_ratios(list(read(epochs(0, window))), ROOM)
    assert_near_the_optimum(ratios)
    assert ratios.optimum == pytest.approx(ROOM / SHARDS, abs=0.005)
    assert ratios.uses == SHARDS * (EPOCHS - 1)


def test_storage_order_again_and_again_is_where_lru_never_hits() -> None:
    ratios = hit_ratios(list(read(epochs(0, 1, shuffle=False))), ROOM)
    assert_near_the_optimum(ratios)
    assert ratios.lru == 0


@pytest.mark.parametrize("room", [12, 40, 100])
def test_small_and_large_caches_are_near_the_optimum(room: int) -> None:
    assert_near_the_optimum(hit_ratios(list(read(epochs(2, 4))), room))


def test_two_ranks_of_one_machine_share_what_either_has_fetched() -> None:
    orders = epochs(1, 8)
    steps = in_turn(read(orders, rank=0, world_size=2), read(orders, reader=1, rank=1, world_size=2))
    assert_near_the_optimum(hit_ratios(steps, ROOM))


def test_two_jobs_keep_what_either_needs_soon() -> None:
    ratios = hit_ratios(in_turn(read(epochs(1, 8)), read(epochs(2, 8), reader=1)), ROOM)
    assert_near_the_optimum(ratios)
    assert ratios.ours > ROOM / SHARDS + 0.1


def test_a_resume_in_the_middle_goes_on_with_what_is_there() -> None:
    orders = epochs(3, 8)
    first, second, *others = orders
    middle = second.samples // 3
    steps = [
        *record_epoch(first, batch=BATCH, counted=False),
        *record_epoch(second, batch=BATCH, stop=middle),
        *record_epoch(second, reader=1, batch=2 * BATCH, start=middle),  # as by another process, with larger batches
        *read(others, reader=1),
    ]
    assert_near_the_optimum(hit_ratios(steps, ROOM))


def test_shards_that_come_several_times_in_an_epoch_are_kept_for_the_next_time() -> None:
    order, steps = RepeatedShards(SHARDS, ROWS), list[Step]()
    for _ in range(EPOCHS):
        steps += order.steps()
        order = order.following()
    assert_near_the_optimum(hit_ratios(steps, ROOM))
