"""Plays the cache's decisions on recorded accesses of several situations, beside the offline optimum and LRU.

No data is read and nothing is fetched: the accesses are those of real orders over a data set that exists as numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any, Final

import numpy as np

from forebay.benchmarks.repeated_shards import RepeatedShards
from forebay.cache import HitRatios, Step, hit_ratios, in_turn, record_epoch
from forebay.errors import ConfigError
from forebay.sharding import EpochOrder

__all__ = ["SITUATIONS", "CacheRow", "measure_cache"]

_ROWS: Final = 32
_BATCH: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """The data set that is imagined: shards of 32 samples, read in batches of 16."""

    shards: int
    epochs: int
    window: int

    def orders(self, seed: int, window: int | None = None) -> list[EpochOrder]:
        """One for each epoch."""
        rows = np.full(self.shards, _ROWS, np.int64)
        window = self.window if window is None else window
        orders = [EpochOrder(rows, fingerprint="simulated", seed=seed, epoch=0, shuffle=True, window=window)]
        while len(orders) < self.epochs:
            orders.append(orders[-1].following())
        return orders


@dataclass(frozen=True, slots=True)
class CacheRow:
    """One situation: shares of the uses of shards that needed no fetch, from the second epoch on."""

    situation: str
    ratios: HitRatios

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        ratios = self.ratios
        return {
            "situation": self.situation,
            "ours": ratios.ours,
            "optimum": ratios.optimum,
            "lru": ratios.lru,
            "uses": ratios.uses,
        }


def _read(orders: list[EpochOrder], *, reader: int = 0, rank: int = 0, world_size: int = 1) -> Iterator[Step]:
    for order in orders:
        yield from record_epoch(
            order, reader=reader, rank=rank, world_size=world_size, batch=_BATCH, counted=order.epoch > 0
        )


def _whole_epochs(data: Simulated) -> list[Step]:
    return list(_read(data.orders(0, window=1)))


def _windows(data: Simulated) -> list[Step]:
    return list(_read(data.orders(0)))


def _two_ranks(data: Simulated) -> list[Step]:
    orders = data.orders(0)
    return in_turn(_read(orders, world_size=2), _read(orders, reader=1, rank=1, world_size=2))


def _two_jobs(data: Simulated) -> list[Step]:
    return in_turn(_read(data.orders(0)), _read(data.orders(1), reader=1))


def _resumed(data: Simulated) -> list[Step]:
    first, second, *others = data.orders(0)
    middle = second.samples // 3
    return [
        *record_epoch(first, batch=_BATCH, counted=False),
        *record_epoch(second, batch=_BATCH, stop=middle),
        *record_epoch(second, reader=1, batch=2 * _BATCH, start=middle),
        *_read(others, reader=1),
    ]


def _repeated(data: Simulated) -> list[Step]:
    order, steps = RepeatedShards(data.shards, _ROWS), list[Step]()
    for _ in range(data.epochs):
        steps += order.steps()
        order = order.following()
    return steps


SITUATIONS: Final[dict[str, Callable[[Simulated], list[Step]]]] = {
    "one shard after the other": _whole_epochs,
    "windows": _windows,
    "some shards three times an epoch": _repeated,
    "two ranks of one machine": _two_ranks,
    "two jobs with orders of their own": _two_jobs,
    "resumed in the second epoch": _resumed,
}
"""What is read in which order, by name."""


def measure_cache(
    *, shards: int, room: int, window: int, epochs: int, progress: Callable[[str], None]
) -> list[CacheRow]:
    """Hit ratios of the cache's decisions, of the offline optimum and of LRU, in every situation.

    Args:
        shards: of the data set that is imagined.
        room: shards that the cache holds.
        window: shards that the shuffle mixes.
        epochs: at least 2; the first one fills the cache and is not counted.
        progress: called with the name of each situation that is done.

    Raises:
        ConfigError: fewer than 2 epochs, or a cache smaller than the windows of two readers.
    """
    if epochs < 2:
        raise ConfigError(f"epochs={epochs}; the first one fills the cache, so give at least 2", epochs=epochs)
    if room < 2 * window + 2:
        raise ConfigError(f"room={room} shards do not hold two windows of {window}; give at least {2 * window + 2}")
    data = Simulated(shards=shards, epochs=epochs, window=window)
    rows = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn")) as processes:
        for situation, ratios in zip(SITUATIONS, processes.map(partial(_play, data, room), SITUATIONS), strict=True):
            rows.append(CacheRow(situation, ratios))
            progress(situation)
    return rows


def _play(data: Simulated, room: int, situation: str) -> HitRatios:
    return hit_ratios(SITUATIONS[situation](data), room)
