"""The folders of one cache, each on a drive of its own, and which of them is the home of a shard.

What may lie in a folder, and at whose cost, is the folder's affair.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import xxhash

from forebay.cache.config import CacheConfig
from forebay.cache.folder import CacheFolder
from forebay.cache.future import Order
from forebay.cache.readers import Reader
from forebay.sharding import StoredDataset

__all__ = ["CacheFolders", "choose_home"]


class CacheFolders:
    """All folders of a cache. Thread-safe, as they are.

    A shard has one home, so nothing is fetched twice and no folder needs to know another; a drive that is full or
    read-only costs its own share of the shards and no more.

    Raises:
        CacheError: one of the folders cannot hold a cache.
    """

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.folders = [CacheFolder(config, path) for path in config.folders]
        self.budget = sum(folder.budget for folder in self.folders)
        """Bytes, over all folders."""
        self._names = [str(folder.path) for folder in self.folders]
        self._weights = [folder.budget for folder in self.folders]

    def home(self, fingerprint: str, name: str) -> CacheFolder:
        """The folder where a shard is kept, if it is kept."""
        return self.folders[choose_home(f"{fingerprint}/{name}", self._names, self._weights)]

    def enter(self, data: StoredDataset, *, stop: threading.Event) -> list[Reader]:
        """Begin to read a data set: a reader in each folder, which the caller closes."""
        return [folder.enter(data, stop=stop) for folder in self.folders]

    def follow(self, readers: Sequence[Reader], order: Order, position: int, *, stop: threading.Event) -> None:
        """Tell in which order the readers that `enter` gave go on, and from where."""
        for folder, reader in zip(self.folders, readers, strict=True):
            folder.follow(reader, order, position, stop=stop)


def choose_home(key: str, folders: Sequence[str], weights: Sequence[int]) -> int:
    """Which of the folders keeps a shard: each with a probability in proportion to its weight (rendezvous hashing).

    The order in which folders are listed does not matter; one that is added or taken away moves its own share alone.

    Args:
        key: names the shard.
        folders: their names, at least one.
        weights: their budgets, 0 or more.

    Returns:
        The index of a folder.
    """

    def score(i: int) -> float:
        drawn = (xxhash.xxh3_64_intdigest(f"{folders[i]}\0{key}".encode()) + 0.5) / 2**64
        return -weights[i] / math.log(drawn)

    return max(range(len(folders)), key=score) if len(folders) > 1 else 0
