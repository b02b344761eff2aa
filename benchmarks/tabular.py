"""Measures tables: epochs of a Parquet table, beside pyarrow in file order; memory while streaming; opening many files.

Every pass delivers the same tensors, (B, F) float32 and (B,) int64. The table is random numbers, written for this.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import xxhash
from torch import Tensor

from forebay.benchmarks.machine import describe_machine
from forebay.benchmarks.tabular_memory import StreamedMemory, StreamWork, measure_stream
from forebay.benchmarks.turns import PassTime, Ratio, take_turns
from forebay.cache import CacheConfig
from forebay.errors import ConfigError
from forebay.loader import DataLoader, ShardDataset

__all__ = ["REFERENCE", "TabularReport", "TabularSide", "TabularWork", "measure_tabular"]

REFERENCE = "pyarrow, in file order"


@dataclass(frozen=True, kw_only=True, slots=True)
class TabularWork:
    """The table, and how it is read."""

    rows: int = 2_000_000
    columns: int = 20
    """Of float32; and a label."""
    files: int = 8
    group_rows: int = 50_000
    """Rows of a row group."""
    batch_size: int = 8192
    threads: int = 2
    opened_files: int = 10_000
    """Of the tree that is opened, 10 rows each; 0: none is."""
    stream: StreamWork | None = None
    """What is streamed through a small cache; None: nothing."""

    def __post_init__(self) -> None:
        if min(self.columns, self.files, self.group_rows, self.batch_size, self.threads) < 1 or self.rows < self.files:
            raise ConfigError(f"{self}: give at least one of each, and a row a file")


@dataclass(frozen=True, slots=True)
class TabularSide:
    """One way to read an epoch."""

    name: str
    rows_per_s: tuple[float, ...]
    """By round."""
    over_reference: Ratio
    """Times as fast as pyarrow in file order, by pairs of rounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TabularReport:
    """All that was measured."""

    work: TabularWork
    sides: tuple[TabularSide, ...]
    hashes: int
    """Different contents of one epoch over 1, 2 and 4 threads, with the cache cold and warm: 1 is right."""
    later_converted: int
    """Units that were made from Parquet in later epochs: 0 is right."""
    later_source_nbytes: int
    """Bytes that were read of the source in later epochs: 0 is right."""
    open_s: tuple[float, float] | None
    """Opening a tree of small files the first time, and again."""
    streamed: StreamedMemory | None
    machine: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def measure_tabular(
    work: TabularWork, *, rounds: int = 5, folder: Path | None = None, progress: Callable[[str], None]
) -> TabularReport:
    """Write a table and read it every way, in turn.

    Args:
        work: what and how.
        rounds: passes of each side after one that warms up.
        folder: on a local disk, for table and caches; a temporary one when None.
        progress: told what is done next.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="forebay-bench-") as temporary:
        place = Path(temporary)
        progress("writing the table")
        _write(place / "table", work)
        later = _Later(place, work)
        sides: dict[str, Callable[[], PassTime]] = {
            REFERENCE: lambda: _timed(_in_file_order(place / "table", work)),
            "first epoch, no cache": lambda: _timed(_loader(place, work, "")),
            "first epoch, into the cache": _First(place, work),
            "later epochs, from the cache": later,
        }
        told = take_turns(sides, rounds=rounds, progress=progress)
        speeds = {name: tuple(each.images_per_s for each in passes[1:]) for name, passes in told.items()}
        progress("comparing epochs")
        hashes = _hashes(place, work)
        progress("opening many files")
        opened = _open_many(place / "many", work.opened_files) if work.opened_files else None
        progress("streaming")
        return TabularReport(
            work=work,
            sides=tuple(TabularSide(name, speed, Ratio.of(speed, speeds[REFERENCE])) for name, speed in speeds.items()),
            hashes=hashes,
            later_converted=later.converted,
            later_source_nbytes=later.source_nbytes,
            open_s=opened,
            streamed=None if work.stream is None else measure_stream(work.stream, place / "stream"),
            machine=describe_machine() | {"pyarrow": pa.__version__},
        )


def _write(path: Path, work: TabularWork) -> None:
    path.mkdir()
    rng = np.random.default_rng(0)
    bounds = [work.rows * k // work.files for k in range(work.files + 1)]
    for number in range(work.files):
        rows = bounds[number + 1] - bounds[number]
        columns = {name: rng.random(rows, np.float32) for name in _features(work)}
        table = pa.table(columns | {"label": rng.integers(0, 1000, rows)})
        pq.write_table(table, path / f"{number:05}.parquet", row_group_size=work.group_rows)


def _features(work: TabularWork) -> list[str]:
    return [f"f{i}" for i in range(work.columns)]


def _timed(batches: Iterable[tuple[Tensor, Tensor]]) -> PassTime:
    rows, first_s = 0, 0.0
    started = time.monotonic()
    for features, labels in batches:
        if not rows:
            first_s = time.monotonic() - started
        assert len(features) == len(labels), "each row has its label"
        rows += len(features)
    return PassTime(rows, time.monotonic() - started, first_s)


def _in_file_order(path: Path, work: TabularWork) -> Iterable[tuple[Tensor, Tensor]]:
    for file in sorted(path.iterdir()):
        for batch in pq.ParquetFile(file).iter_batches(work.batch_size):
            columns = [batch.column(i).to_numpy() for i in range(work.columns)]
            labels = batch.column(work.columns).to_numpy()
            yield torch.from_numpy(np.stack(columns, axis=1)), torch.from_numpy(labels.copy())


def _loader(place: Path, work: TabularWork, cache: str, threads: int | None = None) -> _Pairs:
    config = CacheConfig(path=place / cache, budget=1 << 40, min_free=0) if cache else ""
    dataset = ShardDataset(place / "table", cache=config, stack={"features": _features(work)})
    return _Pairs(
        DataLoader(dataset, batch_size=work.batch_size, shuffle=True, seed=0, num_workers=threads or work.threads)
    )


class _Pairs:
    """A loader's batches as pairs."""

    def __init__(self, loader: DataLoader[dict[str, Tensor]]) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        return ((batch["features"], batch["label"]) for batch in self.loader)


class _First:
    """Epochs with an empty cache, each another one."""

    def __init__(self, place: Path, work: TabularWork) -> None:
        self._place, self._work, self._number = place, work, 0

    def __call__(self) -> PassTime:
        self._number += 1
        return _timed(_loader(self._place, self._work, f"first-{self._number}"))


class _Later:
    """Epochs of one loader, behind one that fills its cache."""

    def __init__(self, place: Path, work: TabularWork) -> None:
        self._place, self._work = place, work
        self._pairs: _Pairs | None = None
        self.converted = self.source_nbytes = 0

    def __call__(self) -> PassTime:
        if self._pairs is None:
            self._pairs = _loader(self._place, self._work, "later")
            _timed(self._pairs)
        self._pairs.loader.reset_stats()
        measured = _timed(self._pairs)
        counts = self._pairs.loader.stats().cache
        self.converted += int(counts["converted"])
        self.source_nbytes += int(counts["source_nbytes"])
        return measured


def _hashes(place: Path, work: TabularWork) -> int:
    found = set()
    for cache in ("", "hashes"):
        for threads in (1, 2, 4):
            state = xxhash.xxh3_128()
            for features, labels in _loader(place, work, cache, threads):
                state.update(features.numpy().tobytes())
                state.update(labels.numpy().tobytes())
            found.add(state.hexdigest())
    return len(found)


def _open_many(path: Path, files: int) -> tuple[float, float]:
    table = pa.table({"a": np.arange(10), "b": np.zeros(10)})
    for number in range(files):
        folder = path / f"part={number // 100}"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / f"{number}.parquet")
    times = []
    for _ in range(2):
        begin = time.monotonic()
        ShardDataset(path, cache=CacheConfig(path=path.with_name("cache-many"), budget=1 << 30, min_free=0))
        times.append(time.monotonic() - begin)
    return times[0], times[1]
