"""From file names in the cache back to shards of a data set, without a table of all names."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from forebay.cache.decoded_names import shard_of
from forebay.sharding import UNIT_WRITER, StoredDataset

__all__ = ["UNIT_ENDING", "ShardNames"]

UNIT_ENDING = "~"
"""Between the name of a table's unit and what it was made into: the cache may hold several makes of it."""


class ShardNames:
    """Indices of shards by name, found by bisection (an index's names ascend) and remembered. Thread-safe.

    Memory is in proportion to the names asked for, which are those in the cache: 10^6 names as Python strings would
    take 100 MB.
    """

    def __init__(self, data: StoredDataset) -> None:
        self._data = data
        self._found: dict[str, int] = {}

    def find(self, names: Sequence[str]) -> npt.NDArray[np.int64]:
        """(N,) index of each name's shard, also of decoded samples; -1 for a name that the data set does not have."""
        return np.array([self._find(name) for name in names], np.int64)

    def _find(self, name: str) -> int:
        shard = self._found.get(name)
        if shard is None:
            whole = shard_of(name)
            shards = range(self._data.num_shards)
            if self._data.manifest.writer.get("format") == UNIT_WRITER:
                whole = whole.partition(UNIT_ENDING)[0]
            place = bisect.bisect_left(shards, whole.encode(), key=lambda i: self._data.shard_name(i).encode())
            shard = place if place < len(shards) and self._data.shard_name(place) == whole else -1
            self._found[name] = shard
        return shard
