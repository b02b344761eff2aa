"""A data set behind a network, read where it lies, without a cache: no thread, no plan, and every opening is a miss."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from forebay.cache.future import Order
from forebay.cache.interrupts import Interrupts
from forebay.cache.remote_source import RemoteFile, RemoteSource
from forebay.cache.store import new_counts
from forebay.errors import ClosedError
from forebay.sharding import ShardReader, StoredDataset

__all__ = ["RemoteStore"]


class RemoteStore:
    """Conforms to `ShardStore`. After `close`, its readers read no more."""

    def __init__(self, data: StoredDataset, source: RemoteSource, columns: Sequence[str] | None = None) -> None:
        self._data = data
        self._columns = columns
        self._closing = Interrupts(data.name)
        self._fetcher = source.for_store(self._closing)
        self._opened = 0
        self._lock = threading.Lock()

    def open_shard(self, shard: int) -> ShardReader:
        """See `ShardStore.open_shard`."""
        return self.open_shards([shard])[0]

    def open_shards(self, shards: Sequence[int]) -> list[ShardReader]:
        """See `ShardStore.open_shards`."""
        if self._closing.is_set():
            raise ClosedError(f"a shard of {self._data.name} was opened after the store was closed")
        with self._lock:
            self._opened += len(shards)
        data = self._data
        files = [RemoteFile(self._fetcher, data.shard_name(shard), int(data.shard_nbytes[shard])) for shard in shards]
        return data.readers(shards, files, self._columns)

    def follow(self, order: Order, start: int = 0) -> None:
        """Nothing is fetched ahead: there is no place to keep it."""

    def advance(self, position: int) -> None:
        """Nothing to free."""

    def stats(self) -> dict[str, int | float]:
        """See `ShardStore.stats`."""
        with self._lock:
            opened = self._opened
        return new_counts() | {"misses": opened, "bypassed": opened} | self._fetcher.traffic.counts()

    def close(self) -> None:
        """See `ShardStore.close`."""
        self._closing.set()
