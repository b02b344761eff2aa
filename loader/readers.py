"""Open shards, least recently used closed first, and the raw values of samples read from them."""

from __future__ import annotations

import functools
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from forebay.cache import ShardStore
from forebay.loader.encoded import JpegPart
from forebay.sharding import BlockPool, JpegLayout, Kind, ReadMemory, Schema, ShardReader

__all__ = ["OPEN_SHARDS", "ReaderPool"]

RowsNeeded = Callable[[str, JpegLayout], tuple[int, int] | None]
OPEN_SHARDS = 256
"""Most shards kept open at once: a quarter of the usual limit of 1,024 open files."""


class ReaderPool:
    """Raw values of samples, from shards that stay open while they are in use. Thread-safe; one reads at a time.

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
        self._scalar = {name: schema[name].kind is Kind.SCALAR for name in columns}
        self._image = {name: schema[name].kind is Kind.IMAGE for name in columns}
        self._tensor = {name: schema[name].kind is Kind.TENSOR for name in columns}
        self._memory = ReadMemory(blocks)
        self._open: OrderedDict[int, ShardReader] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, shard: int, row: int, rows: RowsNeeded | None = None) -> dict[str, Any]:
        """One sample, undecoded: a numpy scalar for scalar columns, an array for tensors, else a memoryview of bytes.

        Args:
            shard: number of the shard.
            row: of the shard.
            rows: asked, for each crop-addressable JPEG, which rows of its pixels are needed, by column and layout:
                first and number, as stored. Of these comes a `JpegPart`; the whole file where the answer is None.

        Raises:
            ShardCorruptError: the bytes differ from what was written; names data set, shard, row and column.
            SourceError: the bytes cannot be read.
        """
        with self._lock:
            reader = self._reader(shard)
            raw: dict[str, Any] = {}
            for name, scalar in self._scalar.items():
                if scalar:
                    raw[name] = reader.scalars(name)[row]
                elif self._tensor[name]:
                    raw[name] = reader.value(row, name)
                else:
                    raw[name] = self._read_media(reader, shard, row, name, rows if self._image[name] else None)
            return raw

    def _read_media(
        self, reader: ShardReader, shard: int, row: int, name: str, rows: RowsNeeded | None
    ) -> memoryview | JpegPart:
        layout = None if rows is None else reader.jpeg_layout(row, name)
        needed = None if rows is None or layout is None else rows(name, layout)
        if layout is None or needed is None:
            view = reader.read(row, name, self._memory)
            self.read_nbytes += len(view)
            return view
        header, bands, first_row = reader.read_jpeg(row, name, *needed, self._memory)
        self.read_nbytes += len(header) + len(bands)
        return JpegPart(header, bands, first_row, layout, functools.partial(self._read_whole, shard, row, name))

    def _read_whole(self, shard: int, row: int, name: str) -> memoryview:
        with self._lock:
            view = self._reader(shard).read(row, name, self._memory)
            self.read_nbytes += len(view)
            return view

    def _reader(self, shard: int) -> ShardReader:
        reader = self._open.get(shard)
        if reader is not None:
            self._open.move_to_end(shard)
            return reader
        while len(self._open) >= self._limit:
            self._open.popitem(last=False)[1].close()
        reader = self._store.open_shard(shard)
        self._open[shard] = reader
        return reader

    def close(self) -> None:
        """Close every shard. Calling it again does nothing."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()
            self._memory.close()
