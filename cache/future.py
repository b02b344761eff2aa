"""When a shard is next used: in this epoch, or else in the next one, whose order is known as well.

Arithmetic over an order; which readers there are, and how far each has come, is told by `readers.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from forebay.sharding import ShardSpan

__all__ = ["Order", "until_next_use"]

Int64s = npt.NDArray[np.int64]


class Order(Protocol):
    """What the cache asks of an epoch's order; `EpochOrder` conforms. Thread-safe."""

    @property
    def samples(self) -> int:
        """Positions of the epoch."""

    def spans(self, start: int = 0) -> Iterator[ShardSpan]:
        """The shards in order of first use from `start` on, as they are asked for."""

    def next_use(self, shards: Int64s, position: int) -> Int64s:
        """The earliest position, `position` or later, at which each shard may be used; `samples` for no more."""

    def following(self) -> Order:
        """The order of the epoch after this one."""


def until_next_use(order: Order, shards: Int64s, position: int) -> Int64s:
    """How many samples are read before each shard may be used again.

    Each shard that has rows is used in every epoch, so looking into the next one is enough to know, and what is kept
    from one epoch to the next can be chosen as Belady's rule wants it: a shard used late in one epoch and early in the
    next is worth its place, one that waits for two epochs is not.

    Args:
        order: of the epoch that is being read.
        shards: int64 (N,).
        position: read so far, from 0 to `samples`.

    Returns:
        int64 (N,), 0 for what may be used now; shards without rows come last.
    """
    use = order.next_use(shards, position)
    done = np.flatnonzero(use >= order.samples)
    if len(done):
        use[done] = order.samples + order.following().next_use(shards[done], 0)
    use -= position
    return use
