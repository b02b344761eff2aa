"""The cache of this machine: data sets are attached to it, and read through the stores that come back."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from forebay.cache.cached_store import CachedStore
from forebay.cache.config import CacheConfig
from forebay.cache.folders import CacheFolders
from forebay.cache.remote_source import RemoteSource
from forebay.cache.remote_store import RemoteStore
from forebay.cache.store import InPlaceStore, ShardStore
from forebay.errors import ClosedError, ConfigError
from forebay.sharding import FolderSource, StoredDataset

__all__ = ["ShardCache", "open_store"]


class ShardCache:
    """Keeps shards of any number of data sets within one budget, shared by all processes of the machine.

    Between calls it holds no lock; threads, and the files that tell other processes what is read, are the stores'. What
    is kept outlives the process. A shard that is evicted while it is open stays readable to whoever has it open, and
    its blocks on the disk are free when that one closes it: the budget counts files, so leave room for what a process
    holds open.

    Args:
        config: where, and how many bytes.
        fetch_threads: how many shards each store fetches ahead at a time. 2: one transfers while the other is synced.

    Raises:
        CacheError: the folder cannot hold a cache; says why and what would.
    """

    def __init__(self, config: CacheConfig, *, fetch_threads: int = 2) -> None:
        if fetch_threads < 1:
            raise ConfigError(f"fetch_threads={fetch_threads}; give at least 1", fetch_threads=fetch_threads)
        self._fetch_threads = fetch_threads
        self._folders = CacheFolders(config)
        self._stores: list[CachedStore] = []
        self._lock = threading.Lock()
        self._closed = False

    def attach(self, data: StoredDataset, columns: Sequence[str] | None = None) -> ShardStore:
        """A store that reads `data` through this cache. The caller closes it, or the cache's `close` does.

        Args:
            data: its source is never modified.
            columns: those that will be read; all when None.

        Raises:
            ConfigError: the data set lies within the cache's folder.
            ClosedError: the cache was closed.
        """
        source = data.source
        for folder in self._folders.folders:
            if isinstance(source, FolderSource) and source.root.resolve().is_relative_to(folder.path.resolve()):
                raise ConfigError(
                    f"the data set {data.name} lies within the cache folder {folder.path}, where files are evicted; "
                    f"give a cache folder outside the data",
                    path=folder.path,
                )
        store = CachedStore(self._folders, data, columns, fetch_threads=self._fetch_threads)
        with self._lock:
            if self._closed:
                raise ClosedError(
                    f"{data.name} was attached to the cache {self._folders.config.path} after it was closed"
                )
            self._stores = [*(other for other in self._stores if not other.closed), store]
        return store

    def close(self) -> None:
        """Close all stores. Calling it again does nothing."""
        with self._lock:
            self._closed = True
            stores, self._stores = self._stores, []
        for store in stores:
            store.close()


def open_store(data: StoredDataset, cache: CacheConfig | None, columns: Sequence[str] | None = None) -> ShardStore:
    """How to read a data set: where it lies when `cache` is None, else through the cache there.

    Raises:
        CacheError: the cache's folder cannot hold a cache.
        ConfigError: the data set lies within the cache's folder.
    """
    if cache is None and isinstance(data.source, RemoteSource):
        return RemoteStore(data, data.source, columns)
    if cache is None:
        return InPlaceStore(data, columns)
    return ShardCache(cache).attach(data, columns)
