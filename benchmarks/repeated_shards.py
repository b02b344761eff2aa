"""An order that visits some shards several times in an epoch, as oversampling does: for the simulation alone."""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from forebay.cache import Step
from forebay.sharding import ShardSpan

__all__ = ["RepeatedShards"]


class RepeatedShards:
    """Every eighth shard is visited three times, all others once, in a random order. Conforms to the cache's `Order`.

    Args:
        shards: of the data set.
        rows: of each shard.
        epoch: the order's seed as well.
    """

    def __init__(self, shards: int, rows: int, epoch: int = 0) -> None:
        visits = [shard for shard in range(shards) for _ in range(3 if shard % 8 == 0 else 1)]
        self.epoch = epoch
        self.samples = len(visits) * rows
        self._visits = random.Random(epoch).sample(visits, len(visits))
        self._shards, self._rows = shards, rows
        self._following: RepeatedShards | None = None
        self._places: dict[int, list[int]] = {}
        for place, shard in enumerate(self._visits):
            self._places.setdefault(shard, []).append(place)

    def spans(self, start: int = 0) -> Iterator[ShardSpan]:
        """See `EpochOrder.spans`; a shard comes as often as it is visited."""
        for place in range(start // self._rows, len(self._visits)):
            yield ShardSpan(self._visits[place], max(start, place * self._rows), (place + 1) * self._rows)

    def next_use(self, shards: npt.NDArray[np.int64], position: int) -> npt.NDArray[np.int64]:
        """See `EpochOrder.next_use`."""
        return np.array([self._next_visit(shard, position) for shard in shards.tolist()], np.int64)

    def _next_visit(self, shard: int, position: int) -> int:
        places = self._places[shard]
        i = bisect.bisect_left(places, position // self._rows)
        return max(position, places[i] * self._rows) if i < len(places) else self.samples

    def following(self) -> RepeatedShards:
        """See `EpochOrder.following`."""
        if self._following is None:
            self._following = RepeatedShards(self._shards, self._rows, self.epoch + 1)
        return self._following

    def steps(self) -> Iterator[Step]:
        """The accesses of the epoch, a batch a visit."""
        for place, shard in enumerate(self._visits):
            yield Step(0, self, place * self._rows, (shard,), self.epoch > 0)
