"""Measures how much memory a process takes that streams a table through a cache much smaller than the table."""

from __future__ import annotations

import multiprocessing
import os
import statistics
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from forebay.cache import CacheConfig
from forebay.errors import ForebayError
from forebay.loader import DataLoader, ShardDataset

__all__ = ["StreamWork", "StreamedMemory", "measure_stream"]

_COLUMNS = 64
_GROUP_ROWS = 50_000


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamWork:
    """What is streamed."""

    nbytes: int = 20_000_000_000
    """Of the table as Arrow data: one file is written, and linked until there is as much."""
    cache_nbytes: int = 2_000_000_000
    window: int = 16
    """Units that the shuffle mixes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamedMemory:
    """Resident memory of the process, maps of the cache included."""

    nbytes: int
    """Of the table."""
    before_nbytes: int
    """Before the first batch."""
    largest_nbytes: int
    early_nbytes: int
    """Median over the second quarter of the epoch."""
    late_nbytes: int
    """Median over the last quarter: as much, where nothing grows."""


def measure_stream(work: StreamWork, place: Path) -> StreamedMemory:
    """Write a table, and read an epoch of it in a process of its own.

    Args:
        work: how much.
        place: a folder that is made.

    Raises:
        ForebayError: the process ended without telling.
    """
    group_nbytes = 4 * _COLUMNS * _GROUP_ROWS
    (place / "table").mkdir(parents=True)
    rng = np.random.default_rng(0)
    columns = {f"f{i}": rng.random(4 * _GROUP_ROWS, np.float32) for i in range(_COLUMNS)}
    first = place / "table" / "0.parquet"
    pq.write_table(pa.table(columns), first, row_group_size=_GROUP_ROWS, use_dictionary=False)
    files = max(1, work.nbytes // (4 * group_nbytes))
    for number in range(1, files):
        os.link(first, place / "table" / f"{number}.parquet")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_stream, args=(work, place, theirs))
    process.start()
    theirs.close()
    try:
        told: list[int] = ours.recv()
    except EOFError as error:
        raise ForebayError("the process that streams a table ended without telling how much memory it took") from error
    finally:
        ours.close()
        process.join()
    before, seen = told[0], told[1:]
    quarter = max(1, len(seen) // 4)
    return StreamedMemory(
        nbytes=files * 4 * group_nbytes,
        before_nbytes=before,
        largest_nbytes=max(seen),
        early_nbytes=int(statistics.median(seen[quarter : 2 * quarter] or seen)),
        late_nbytes=int(statistics.median(seen[-quarter:])),
    )


def _stream(work: StreamWork, place: Path, pipe: Connection) -> None:
    dataset = ShardDataset(
        place / "table",
        cache=CacheConfig(path=place / "cache", budget=work.cache_nbytes, min_free=0),
        stack={"features": [f"f{i}" for i in range(_COLUMNS)]},
    )
    loader = DataLoader(dataset, batch_size=8192, shuffle=True, seed=0, num_workers=2, window=work.window)
    told = [_resident_nbytes()]
    told += [_resident_nbytes() for _ in loader]
    pipe.send(told)
    pipe.close()


def _resident_nbytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
