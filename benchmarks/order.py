"""Measures the epoch's order: what opening it costs in time and memory, a seek, and its positions per second."""

from __future__ import annotations

import tracemalloc
from statistics import median
from time import perf_counter
from typing import Final

import numpy as np
import numpy.typing as npt

from forebay.errors import ConfigError
from forebay.sharding import EpochOrder

__all__ = ["measure"]

_POSITIONS: Final = 1_000_000
_ROUNDS: Final = 5


def measure(*, samples: int, shards: int, window: int | None, seed: int = 0) -> dict[str, float | int]:
    """Open the shuffled order of a data set that exists only as numbers, and time it on this thread.

    Rows differ from shard to shard, evenly between half and one and a half times the average.

    Args:
        samples: of the data set, at least one for each shard.
        shards: of the data set.
        window: shards mixed at a time; None for the default.
        seed: of the order, and of the rows.

    Returns:
        `samples`, `shards` and `window` as used; `open_s` from the rows to the order; `first_sample_s` from the rows to
        the first sample's place; `peak_memory_mb`, 10^6 bytes allocated on the way there at the most; `seek_s` to one
        position near the middle, median of 5; `positions_per_s` for 10^6 neighbouring positions (or all), median of 5
        places; `cipher_calls`, see `EpochOrder.mean_cipher_calls`.

    Raises:
        ConfigError: fewer samples than shards, or no shards.
    """
    if not 0 < shards <= samples:
        raise ConfigError(
            f"samples={samples} in shards={shards}: a shard needs a sample; give at least as many samples as shards",
            samples=samples,
            shards=shards,
        )
    rows = _unequal_rows(samples, shards, seed)
    begin = perf_counter()
    order = _open(rows, window, seed)
    opened = perf_counter()
    order.locate(np.zeros(1, np.int64))
    first = perf_counter()
    long = min(samples, _POSITIONS)
    return {
        "samples": samples,
        "shards": shards,
        "window": order.window,
        "open_s": opened - begin,
        "first_sample_s": first - begin,
        "peak_memory_mb": _peak_memory_nbytes(rows, window, seed) / 1e6,
        "seek_s": median(_locate_s(order, samples // 2 - samples * i // 50, 1) for i in range(_ROUNDS)),
        "positions_per_s": long / median(_locate_s(order, (samples - long) * i // 4, long) for i in range(_ROUNDS)),
        "cipher_calls": order.mean_cipher_calls(),
    }


def _unequal_rows(samples: int, shards: int, seed: int) -> npt.NDArray[np.int64]:
    """int64 (shards,), `samples` together."""
    weights = np.cumsum(np.random.default_rng(seed).uniform(0.5, 1.5, shards))
    ends = np.arange(1, shards + 1) + np.floor(weights * ((samples - shards) / weights[-1])).astype(np.int64)
    ends[-1] = samples
    rows: npt.NDArray[np.int64] = np.diff(ends, prepend=0)
    return rows


def _open(rows: npt.NDArray[np.int64], window: int | None, seed: int) -> EpochOrder:
    return EpochOrder(rows, fingerprint="benchmark", seed=seed, epoch=0, shuffle=True, window=window)


def _peak_memory_nbytes(rows: npt.NDArray[np.int64], window: int | None, seed: int) -> int:
    tracemalloc.start()
    try:
        _open(rows, window, seed).locate(np.zeros(1, np.int64))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _locate_s(order: EpochOrder, start: int, num_positions: int) -> float:
    positions = np.arange(start, start + num_positions)
    begin = perf_counter()
    order.locate(positions)
    return perf_counter() - begin
