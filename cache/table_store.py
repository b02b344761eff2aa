"""The prepared units of a table: mapped from the cache where they are kept, made from Parquet and kept where not.

Which unit and when is the loader's affair, and so is what is made of its rows; who may have room is the folder's.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from forebay.cache.advice import warn_of_size
from forebay.cache.config import CacheConfig
from forebay.cache.folder import CacheFolder, Refusal
from forebay.cache.folders import CacheFolders
from forebay.cache.future import Order
from forebay.cache.interrupts import Interrupts
from forebay.cache.remote_source import FarFetcher, RemoteFile, RemoteSource
from forebay.cache.reservation import Reservation
from forebay.cache.shard_names import UNIT_ENDING
from forebay.cache.store import new_counts
from forebay.cache.table_file import file_nbytes, read_batch, write_batch
from forebay.errors import CacheError, ClosedError, ConfigError, ShardCorruptError
from forebay.sharding import FolderSource, ParquetDataset, SourceFile, UnitReader

__all__ = ["HeldUnit", "UnitStore", "open_units"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.002, 0.1
ROUNDS = 3
Prepare = Callable[[int, pa.Table], pa.RecordBatch]

log = logging.getLogger(__name__)
_checked: set[str] = set()  # files that this process has written or compared with their checksum


@dataclass(frozen=True, slots=True)
class HeldUnit:
    """A prepared unit."""

    batch: pa.RecordBatch
    memory_nbytes: int
    """Bytes of memory that it takes; 0 for a map of the cache, which the system may take back."""


def open_units(data: ParquetDataset, cache: CacheConfig | None, prepare: Prepare, *, identity: str) -> UnitStore:
    """The way to a table's units.

    Args:
        data: whose files are read.
        cache: where units are kept; None keeps nothing.
        prepare: makes of a unit's rows what is kept; called by several threads. Says what it does by `identity`.
        identity: part of the names of what is kept.

    Raises:
        CacheError: the cache's folder cannot hold a cache.
        ConfigError: the table lies within it.
    """
    folders = None
    if cache is not None:
        source = data.table.source
        for path in cache.folders:
            if isinstance(source, FolderSource) and source.root.resolve().is_relative_to(path.resolve()):
                raise ConfigError(
                    f"the table {data.name} lies within the cache folder {path}, where files are evicted; give a "
                    f"cache folder outside the data",
                    path=path,
                )
        folders = CacheFolders(cache)
    return UnitStore(data, folders, prepare, identity=identity)


class UnitStore:
    """Units of one table. Thread-safe; starts no thread. `follow`, `advance` and `close` are as of `ShardStore`.

    A unit that another thread or process is making is waited for, as long as that one gets on; nobody waits for room.
    `close` ends waits at once, with `ClosedError`; a unit that is being made is made to its end.
    """

    def __init__(self, data: ParquetDataset, folders: CacheFolders | None, prepare: Prepare, *, identity: str) -> None:
        self._data = data
        self._folders = folders
        self._prepare = prepare
        self._ending = UNIT_ENDING + identity[:16]
        self._stop = Interrupts(f"the units of {data.name}")
        self._fetcher: FarFetcher | None = None
        open_file: Callable[[str, int], SourceFile] | None = None
        if isinstance(data.table.source, RemoteSource):
            self._fetcher = data.table.source.for_store(self._stop)
            open_file = functools.partial(RemoteFile, self._fetcher)
        self._reader = UnitReader(data, open_file)
        self._condition = threading.Condition()
        self._in_hand: set[int] = set()  # the first of the siblings that a thread is making
        self._ratio = 1.0  # bytes of prepared units over what was estimated
        self._counts = new_counts() | {"converted": 0, "source_nbytes": 0}
        self._order: Order | None = None
        self._readers = [] if folders is None else folders.enter(data, stop=self._stop)

    def load(self, unit: int) -> HeldUnit:
        """A prepared unit; blocks until it is there. The caller may keep it, also when the store is closed.

        Raises:
            ShardCorruptError, SourceError: its file cannot be read, or is another than at opening.
            CacheError: the cache's folder cannot be used.
            ClosedError: the store was closed.
            BaseException: what `prepare` raises.
        """
        started = time.monotonic()
        try:
            self._check_open(unit)
            held = self._resident(unit)
            self._count("misses" if held is None else "hits")
            return self._missing(unit) if held is None else held
        finally:
            self._count("wait_s", time.monotonic() - started)

    def _check_open(self, unit: int) -> None:
        if self._stop.is_set():
            raise ClosedError(f"{self._data.where(unit)} was wanted after the loader was closed")

    def _count(self, name: str, more: float = 1) -> None:
        with self._condition:
            self._counts[name] += more

    # -- what is kept --------------------------------------------------------------------------------------------------

    def _home(self, unit: int) -> tuple[CacheFolder, str]:
        assert self._folders is not None, "only asked for where there is a cache"
        name = self._data.shard_name(unit)
        return self._folders.home(self._data.fingerprint, name), name + self._ending

    def _resident(self, unit: int) -> HeldUnit | None:
        if self._folders is None:
            return None
        folder, name = self._home(unit)
        file = folder.open_shard(self._data.fingerprint, name)
        if file is None:
            return None
        try:
            always = self._folders.config.verify == "always"
            batch = read_batch(file, verify=always or file.name not in _checked)
            self._check_rows(unit, batch, file.name)
            _checked.add(file.name)
            return HeldUnit(batch, 0)
        except ShardCorruptError as error:
            what = str(error).partition(";")[0]
            log.warning("the cache's unit is damaged and removed, and made again: %s", what)
            _checked.discard(file.name)
            folder.remove(self._data.fingerprint, name)
            self._count("corrupt")
            return None
        finally:
            file.close()

    def _check_rows(self, unit: int, batch: pa.RecordBatch, name: str) -> None:
        if batch.num_rows != self._data.shard_rows[unit]:
            raise ShardCorruptError(
                f"{name} has {batch.num_rows} rows, and the unit {int(self._data.shard_rows[unit])}; delete it"
            )

    # -- making one ----------------------------------------------------------------------------------------------------

    def _missing(self, unit: int) -> HeldUnit:
        rounds, pause_s = 0, FIRST_PAUSE_S
        while self._folders is not None and rounds < ROUNDS:
            with self._turn(unit):
                held = self._resident(unit)  # a sibling may have brought it
                if held is not None:
                    return held
                room = self._reserve(unit, int(self._data.shard_nbytes[unit] * self._ratio) + 4096, far=False)
                if isinstance(room, Reservation):
                    return self._make(unit, room)
            if room is Refusal.PRESENT:
                rounds += 1
            elif room is Refusal.BUSY:
                self._stop.wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                break
            self._check_open(unit)
        self._count("bypassed")
        return self._make(unit, None)

    @contextlib.contextmanager
    def _turn(self, unit: int) -> Iterator[None]:
        """One thread of this store at a time for units that are decoded together."""
        first = self._data.units.siblings(unit).start
        with self._condition:
            self._condition.wait_for(lambda: first not in self._in_hand or self._stop.is_set())
            self._check_open(unit)
            self._in_hand.add(first)
        try:
            yield
        finally:
            with self._condition:
                self._in_hand.discard(first)
                self._condition.notify_all()

    def _reserve(self, unit: int, nbytes: int, *, far: bool) -> Reservation | Refusal:
        folder, name = self._home(unit)
        if nbytes > folder.budget:
            warn_of_size(self._data, unit, folder.budget)
            return Refusal.NO_ROOM
        room, evicted = folder.reserve(self._data.fingerprint, name, nbytes, far=far, stop=self._stop)
        self._count("evicted", evicted)
        return room

    def _make(self, unit: int, room: Reservation | None) -> HeldUnit:
        """Decode and prepare a unit; where there is a cache, those of its row group as well, as far as they fit."""
        made: pa.RecordBatch | None = None
        full = room is None
        try:
            with contextlib.closing(self._reader.read_parts(unit)) as parts:
                for part, table in parts:
                    self._check_open(unit)
                    if part == unit:
                        made = self._prepared(unit, table)
                        if room is not None:
                            full = not self._keep(unit, made, room)
                            room = None
                    elif not full:
                        full = not self._keep_sibling(part, table)
                    if made is not None and full:
                        break
        finally:
            if room is not None:
                room.give_up()
        assert made is not None, "a unit is one of its own siblings"
        kept = self._resident(unit)
        return HeldUnit(made, made.nbytes) if kept is None else kept

    def _prepared(self, unit: int, table: pa.Table) -> pa.RecordBatch:
        batch = self._prepare(unit, table)
        self._count("converted")
        with self._condition:
            self._ratio = max(self._ratio, 1.02 * batch.nbytes / max(1, int(self._data.shard_nbytes[unit])))
        return batch

    def _keep_sibling(self, unit: int, table: pa.Table) -> bool:
        """Keep a unit that nobody has asked for yet; whether there was room."""
        room = self._reserve(unit, int(self._data.shard_nbytes[unit] * self._ratio) + 4096, far=True)
        if isinstance(room, Refusal):
            return room in (Refusal.PRESENT, Refusal.BUSY)
        try:
            batch = self._prepared(unit, table)
        except BaseException:
            room.give_up()
            raise
        return self._keep(unit, batch, room)

    def _keep(self, unit: int, batch: pa.RecordBatch, room: Reservation) -> bool:
        """Write a unit into the cache; whether it is there now. The room is used up or given back."""
        folder, name = self._home(unit)
        nbytes = file_nbytes(batch)
        try:
            if nbytes > room.nbytes:
                room.give_up()
                more = self._reserve(unit, nbytes, far=False)
                if isinstance(more, Refusal):
                    return more is Refusal.PRESENT
                room = more
            with room:
                room.shrink(nbytes)
                room.allocate()
                write_batch(batch, room.write)
                room.commit(sync=False)
        except (ClosedError, CacheError):
            raise
        except TimeoutError as error:  # of the folder's lock
            log.warning("%s; %s is not kept", str(error), self._data.where(unit))
            return False
        except OSError as error:
            if folder.absorb(error):
                return False
            raise CacheError(
                f"{self._data.where(unit)} cannot be written to the cache folder {folder.path}: {error}; check the "
                f"disk, or read without a cache",
                path=folder.path,
            ) from error
        _checked.add(str(folder.path / self._data.fingerprint / name))
        self._count("fetched")
        self._count("fetched_nbytes", nbytes)
        return True

    # -- as of `ShardStore` --------------------------------------------------------------------------------------------

    @property
    def keeps(self) -> bool:
        """Whether there is a cache."""
        return self._folders is not None

    @property
    def budget(self) -> int:
        """Bytes of the cache; 0 without one."""
        return 0 if self._folders is None else self._folders.budget

    def follow(self, order: Order, start: int = 0) -> None:
        """See `ShardStore.follow`: what is kept is chosen by it."""
        if self._folders is not None and order is not self._order:
            self._folders.follow(self._readers, order, start, stop=self._stop)
            self._order = order

    def advance(self, position: int) -> None:
        """See `ShardStore.advance`."""
        for reader in self._readers:
            reader.advance(position)

    def stats(self) -> dict[str, int | float]:
        """See `ShardStore.stats`; besides `converted`, units that were made from Parquet, and `source_nbytes`."""
        with self._condition:
            counts = dict(self._counts)
        counts["source_nbytes"] = self._reader.read_nbytes
        return counts if self._fetcher is None else counts | self._fetcher.traffic.counts()

    def close(self) -> None:
        """See `ShardStore.close`."""
        self._stop.set()
        with self._condition:
            self._condition.notify_all()
        for reader in self._readers:
            reader.close()
