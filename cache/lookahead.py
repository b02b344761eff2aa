"""Which shard to fetch next: the epoch's plan as far as it was looked at, and what had to wait for room.

A value with a little arithmetic: no thread, no lock, no file. Its owner guards it with a lock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from forebay.cache.future import Order
from forebay.sharding import ShardSpan

__all__ = ["Lookahead", "shards_soon"]


def shards_soon(fits: int, fetch_threads: int) -> int:
    """How many shards ahead of the position may be fetched at the cost of others that are needed later.

    Enough that each thread has one under way and one to come; each takes the place of one that could be kept, so a
    small cache has fewer: a 32nd of it costs half a point of hits where several jobs read.

    Args:
        fits: shards that fit in the budget.
        fetch_threads: that fetch at a time.
    """
    return max(1, min(2 * fetch_threads, fits // 32))


class Lookahead:
    """Where an epoch stands: the position read, the shards ahead in order of first use, those that found no room.

    Args:
        order: its spans are taken one by one, as they are asked for; None: there is nothing to look ahead to.
        start: the position where reading begins.
        soon: how many shards ahead of the position count as wanted soon.
    """

    def __init__(self, order: Order | None, start: int, *, soon: int) -> None:
        self.position = start
        self.idle_until = 0
        """Nothing can have changed before this position: asking for the next shard is in vain."""
        self._order = order
        self._spans: Iterator[ShardSpan] = iter(()) if order is None else order.spans(start)
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

    def in_use(self, num_shards: int) -> npt.NDArray[np.bool_]:
        """Which shards may be used at the position, a mask over all; none where no order is known."""
        if self._order is None or self.position >= self._order.samples:
            return np.zeros(num_shards, np.bool_)
        return self._order.next_use(np.arange(num_shards, dtype=np.int64), self.position) <= self.position
