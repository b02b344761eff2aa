"""What the loader reads shards from: the protocol, and the store that reads data where it lies.

A store makes the bytes of a shard readable; which shard and when is the loader's affair.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from forebay.cache.future import Order
from forebay.errors import ClosedError
from forebay.sharding import ShardReader, StoredDataset

__all__ = ["InPlaceStore", "ShardStore", "new_counts"]


class ShardStore(Protocol):
    """Shards of one data set, readable. Thread-safe; belongs to the process that made it, not to a forked child."""

    def open_shard(self, shard: int) -> ShardReader:
        """Open a shard; blocks until its bytes can be read. The caller closes the reader, which outlives the store.

        Raises:
            ShardCorruptError: its bytes are not those that were written.
            SourceError: they cannot be read.
            CacheError: the cache folder cannot be used.
            ClosedError: the store was closed, before or meanwhile.
        """

    def open_shards(self, shards: Sequence[int]) -> list[ShardReader]:
        """Open several different shards, as `open_shard` does one; of a far source in the time of one.

        Raises:
            ShardCorruptError, SourceError, CacheError, ClosedError: as `open_shard`; then none is open.
        """

    def follow(self, order: Order, start: int = 0) -> None:
        """Take the order of an epoch, in place of the former one.

        Args:
            order: asked by other threads too. Given again when more of it is known than before.
            start: the position where reading begins.
        """

    def advance(self, position: int) -> None:
        """The loader has read up to `position`: shards used only before it are not needed in this epoch."""

    def stats(self) -> dict[str, int | float]:
        """Counts since the store was opened.

        `hits`: openings that found the shard on this machine at once; `misses`: the others; `bypassed`: those of the
        misses that were read from the source in place; `fetched`, `fetched_nbytes`: shards copied here, ahead or on
        demand; `evicted`: shards that made room for them; `corrupt`: copies that were found damaged and dropped;
        `wait_s`: seconds that opening took, over all threads. Of a source behind a network: `requests` and
        `requested_nbytes`, all of them; of these `retries` and `hedges`.
        """

    def close(self) -> None:
        """Wake whoever waits, with `ClosedError`; stop and join the store's threads. Calling it again does nothing."""


def new_counts() -> dict[str, int | float]:
    """What `ShardStore.stats` counts, at zero."""
    return {
        "hits": 0,
        "misses": 0,
        "bypassed": 0,
        "fetched": 0,
        "fetched_nbytes": 0,
        "evicted": 0,
        "corrupt": 0,
        "wait_s": 0.0,
        "requests": 0,
        "requested_nbytes": 0,
        "retries": 0,
        "hedges": 0,
    }


class InPlaceStore:
    """A data set on a local disk, read where it lies by `pread`: no thread, no plan, and every opening is a hit."""

    def __init__(self, data: StoredDataset, columns: Sequence[str] | None = None) -> None:
        self._data = data
        self._columns = columns
        self._counts = new_counts()
        self._lock = threading.Lock()
        self._closed = False

    def open_shard(self, shard: int) -> ShardReader:
        """See `ShardStore.open_shard`."""
        with self._lock:
            if self._closed:
                raise ClosedError(f"a shard of {self._data.name} was opened after the store was closed")
            self._counts["hits"] += 1
        return self._data.open_shard(shard, self._columns)

    def open_shards(self, shards: Sequence[int]) -> list[ShardReader]:
        """See `ShardStore.open_shards`."""
        readers: list[ShardReader] = []
        try:
            for shard in shards:
                readers.append(self.open_shard(shard))  # noqa: PERF401 - what was opened is closed on an error
        except BaseException:
            for reader in readers:
                reader.close()
            raise
        return readers

    def follow(self, order: Order, start: int = 0) -> None:
        """Nothing to plan: the bytes are here."""

    def advance(self, position: int) -> None:
        """Nothing to free."""

    def stats(self) -> dict[str, int | float]:
        """See `ShardStore.stats`."""
        with self._lock:
            return dict(self._counts)

    def close(self) -> None:
        """See `ShardStore.close`."""
        with self._lock:
            self._closed = True
