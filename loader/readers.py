"""Open shards, least recently used closed first, and the raw values of samples read from them."""

from __future__ import annotations

import functools
import resource
import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay.cache import ShardStore
from forebay.loader.encoded import EncodedColumn, RawBatch
from forebay.loader.group_read import GroupRead, RowsNeeded
from forebay.sharding import BlockPool, Frames, Kind, ReadMemory, Schema, ShardReader

__all__ = ["OPEN_SHARDS", "ReaderPool"]

OPEN_SHARDS = 256
"""Most shards kept open at once: a quarter of the usual limit of 1,024 open files."""


class ReaderPool:
    """Raw values of samples, from shards that stay open while they are in use. Thread-safe.

    One reads at a time. Who waits for what is far lets others read, and their shards stay open until all have read.

    Args:
        store: opens shards; stays the caller's.
        schema: of the data set.
        columns: those to read.
        blocks: memory to read into, kept by the caller for later; the pool's own when None.
        in_use: shards that are read in turn: the window of the shuffle. A few more are kept open, not many, because a
            shard that the cache has evicted occupies its disk until it is closed.
    """

    def __init__(
        self,
        store: ShardStore,
        schema: Schema,
        columns: Sequence[str],
        *,
        blocks: BlockPool | None = None,
        in_use: int = OPEN_SHARDS,
    ) -> None:
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = max(1, min(in_use + 2, OPEN_SHARDS, allowed // 4))
        self.read_nbytes = 0
        """Bytes of placed columns that were read. May be looked at while a read waits for its shard."""
        self._store = store
        self._kinds = {name: schema[name].kind for name in columns}
        self._memory = ReadMemory(blocks)
        self._open: OrderedDict[int, ShardReader] = OrderedDict()
        self._waiting: Counter[int] = Counter()  # for samples of which shards somebody waits, and how many
        self._lock = threading.Lock()

    def read(self, shard: int, row: int) -> dict[str, Any]:
        """One sample, undecoded: a numpy scalar for scalar columns, an array for tensors, else a memoryview of bytes.

        Raises:
            ShardCorruptError: the bytes differ from what was written; names data set, shard, row and column.
            SourceError: the bytes cannot be read.
        """
        if not self._kinds:
            return {}
        with self._lock:
            reader = self._reader(shard)
            return {name: self._read_value(reader, row, name) for name in self._kinds}

    def _read_value(self, reader: ShardReader, row: int, name: str) -> Any:
        kind = self._kinds[name]
        if kind is Kind.SCALAR:
            return reader.scalars(name)[row]
        if kind is Kind.TENSOR:
            return reader.value(row, name)
        view = reader.read(row, name, self._memory)
        self.read_nbytes += len(view)
        return view

    def frames(self, shard: int, name: str, rows: int) -> Frames | None:
        """What is known of a shard's pictures without reading them, by row; None of a shard that is not near."""
        with self._lock:
            reader = self._reader(shard)
            return None if reader.far else Frames.of([reader.jpeg_places(name)] * rows, range(rows))

    def read_column(self, shard: int, rows: Sequence[int], name: str) -> list[memoryview]:
        """The bytes of some samples of one shard and column.

        Raises:
            ShardCorruptError, SourceError: as `read`.
        """
        with self._lock:
            group = GroupRead([self._reader(shard)] * len(rows), rows, 0, self._memory)
            group.plan_whole(name)
            if group.far:
                self._bring_near(group, {shard})
            group.load()
            return group.whole(name)

    def read_batch(
        self,
        shards: Sequence[int],
        rows: Sequence[int],
        needed: RowsNeeded | None,
        unread: Mapping[str, npt.NDArray[np.bool_]] | None = None,
    ) -> RawBatch:
        """Many samples, as `read` gives one; of crop-addressable JPEGs only the rows of pixels that are needed.

        Args:
            shards: by sample.
            rows: by sample, its row of the shard.
            needed: asked for columns of pictures; None reads them whole.
            unread: by column of pictures, bool (n,): which samples nobody needs.

        Raises:
            ShardCorruptError, SourceError: as `read`.
        """
        batch = RawBatch()
        if not self._kinds:
            return batch
        for name, kind in self._kinds.items():
            if kind is Kind.IMAGE:
                whole = functools.partial(self._read_whole, shards, rows, name)
                batch.pictures[name] = EncodedColumn.of(rows, whole)
            else:
                batch.values[name] = []
        with self._lock:
            for low, high in self._groups(shards):
                self._open_together(shards[low:high])
                readers = [self._reader(shard) for shard in shards[low:high]]
                group = GroupRead(readers, rows[low:high], low, self._memory)
                self._read_group(batch, group, shards[low:high], needed, unread or {})
        return batch

    def _read_group(
        self,
        batch: RawBatch,
        group: GroupRead,
        shards: Sequence[int],
        needed: RowsNeeded | None,
        unread: Mapping[str, npt.NDArray[np.bool_]],
    ) -> None:
        """Samples of open shards: everything that is placed in one go."""
        for name, kind in self._kinds.items():
            if kind in (Kind.SCALAR, Kind.TENSOR):
                group.plan_values(name)
            elif kind is Kind.IMAGE:
                group.plan_pictures(name, needed, unread.get(name))
            else:
                group.plan_whole(name)
        if group.far:
            self._bring_near(group, set(shards))
        group.load()
        for name, kind in self._kinds.items():
            if kind is Kind.IMAGE:
                group.give_pictures(name, batch.pictures[name])
            elif kind is Kind.SCALAR:
                batch.values[name] += group.scalars(name)
            elif kind is Kind.TENSOR:
                batch.values[name] += group.tensors(name)
            else:
                batch.values[name] += group.whole(name)
        batch.nbytes += group.read_nbytes
        self.read_nbytes += group.read_nbytes

    def _bring_near(self, group: GroupRead, shards: set[int]) -> None:
        """Let go of the lock until it has come."""
        self._waiting.update(shards)
        self._lock.release()
        try:
            group.bring_near()
        finally:
            self._lock.acquire()
            self._waiting.subtract(shards)

    def _groups(self, shards: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Bounds of consecutive samples whose shards can be open all at once."""
        begin, seen = 0, set[int]()
        for i, shard in enumerate(shards):
            if shard not in seen and len(seen) == self._limit:
                yield begin, i
                begin, seen = i, set()
            seen.add(shard)
        yield begin, len(shards)

    def _read_whole(self, shards: Sequence[int], rows: Sequence[int], name: str, i: int) -> memoryview:
        with self._lock:
            view = self._reader(shards[i]).read(rows[i], name, self._memory)
            self.read_nbytes += len(view)
            return view

    def _open_together(self, shards: Sequence[int]) -> None:
        """Open those of the shards that are not, at once; all of them may be open together."""
        wanted = dict.fromkeys(shards)
        for shard in wanted.keys() & self._open.keys():
            self._open.move_to_end(shard)
        missing = [shard for shard in wanted if shard not in self._open]
        if missing:
            self._make_room(len(missing), wanted.keys())
        self._open.update(zip(missing, self._store.open_shards(missing), strict=True))

    def _reader(self, shard: int) -> ShardReader:
        reader = self._open.get(shard)
        if reader is not None:
            self._open.move_to_end(shard)
            return reader
        self._make_room(1, ())
        reader = self._store.open_shard(shard)
        self._open[shard] = reader
        return reader

    def _make_room(self, shards: int, wanted: Collection[int]) -> None:
        """Close shards, the least recently used first; none for which somebody waits, even if more stay open then."""
        for shard in list(self._open):
            if len(self._open) + shards <= self._limit:
                return
            if not self._waiting[shard] and shard not in wanted:
                self._open.pop(shard).close()

    def close(self) -> None:
        """Close every shard. Calling it again does nothing."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()
            self._memory.close()
