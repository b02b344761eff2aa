"""Which shard to fetch next: the epoch's plan as far as it was looked at, and what had to wait for room.

A value with a little arithmetic: no thread, no lock, no file. Its owner guards it with a lock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np
import numpy.typing as npt

from forebay.cache.plan import UNPLANNED
from forebay.sharding import ShardSpan

__all__ = ["Lookahead", "NextUse", "NoPlan"]

NextUse = Callable[[npt.NDArray[np.int64], int], npt.NDArray[np.int64]]
"""`EpochOrder.next_use`: from shards and a position to the earliest position from there on where each may be used."""


class Lookahead:
    """Where an epoch stands: the position read, the shards ahead in order of first use, those that found no room.

    Args:
        spans: shards in order of first use; taken one by one, as they are asked for.
        next_use: of the same order.
        soon: how many shards ahead of the position count as wanted soon.
    """

    def __init__(self, spans: Iterator[ShardSpan], next_use: NextUse, *, soon: int) -> None:
        first = next(spans, None)
        self.position = 0 if first is None else first.first
        self.idle_until = 0
        """Nothing can have changed before this position: asking for the next shard is in vain."""
        self._spans = spans if first is None else chain((first,), spans)
        self._next_use = next_use
        self._soon = soon
        self._held: list[tuple[int, int, ShardSpan]] = []  # shards that found no room, a heap by (first, shard)
        self._begins: deque[int] = deque()  # first positions of the shards taken that lie ahead, ascending
        self._ends: list[int] = []  # last positions of the shards taken that are not read to the end, a heap
        self._passed_by: set[int] = set()  # shards that are read past the cache in this epoch

    def advance(self, position: int) -> bool:
        """The order has been read up to `position`; whether asking for the next shard may now lead somewhere."""
        self.position = max(self.position, position)
        while self._begins and self._begins[0] <= self.position:
            self._begins.popleft()
        while self._ends and self._ends[0] <= self.position:
            heapq.heappop(self._ends)
        return self.position >= self.idle_until

    def take(self) -> ShardSpan | None:
        """The shard to fetch next; None when there is none for now."""
        if self.position < self.idle_until:
            return None
        while self._held:
            span = heapq.heappop(self._held)[2]
            if span.last > self.position and span.shard not in self._passed_by:
                return span
        for span in self._spans:
            if span.last <= self.position or span.shard in self._passed_by:
                continue
            if span.first > self.position:
                self._begins.append(span.first)
            heapq.heappush(self._ends, span.last)
            return span
        self.idle_until = 1 << 62
        return None

    def hold(self, span: ShardSpan) -> None:
        """There is no room for this shard. It comes first when a shard has been read out or this one is wanted soon."""
        heapq.heappush(self._held, (span.first, span.shard, span))
        before = [first for first in self._begins if first <= span.first]
        changes = self._ends[:1] + before[-1:] + before[-1 - self._soon : -self._soon or None]
        if self.idle_until > self.position:  # another thread found no room either
            changes.append(self.idle_until)
        self.idle_until = min(changes, default=self.position + 1)

    def pause(self) -> None:
        """A fetch failed: wait until the reader has come further, so as not to ask a dead source for every shard."""
        self.idle_until = max(self.idle_until, self.position + 1)

    def pass_by(self, shard: int) -> None:
        """The shard is read from the source in place: to fetch it in this epoch would read its bytes twice."""
        self._passed_by.add(shard)

    def is_soon(self, span: ShardSpan) -> bool:
        """Whether a shard is in use or among the next few."""
        return len(self._begins) <= self._soon or span.first < self._begins[self._soon]

    def next_uses(self, shards: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Earliest position at which each shard may be used from here on."""
        return self._next_use(shards, self.position) if len(shards) else shards


class NoPlan(Lookahead):
    """No order is known: nothing is fetched ahead, and all shards are equally wanted."""

    def __init__(self) -> None:
        super().__init__(iter(()), lambda shards, _: np.full(len(shards), UNPLANNED, np.int64), soon=0)
