"""What to keep and what to evict: pure functions of values that touch no file, no clock and no lock.

Farthest next use goes first (Belady 1966), and nothing goes that is needed as soon as what comes: then the cache would
trade one fetch for another, or go round in circles when the shuffle window is larger than the budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["FOREIGN", "UNPLANNED", "Resident", "fitting_window", "plan_admission", "plan_evictions"]

FOREIGN = 1 << 62
"""Next use of a shard of another data set: later than any position, so that it goes first."""

UNPLANNED = 0
"""Next use of every shard while no order is known: all alike, so none makes room for another (random access does not
thrash, and its hit ratio is the share of the data that is kept, which no policy can better)."""


@dataclass(frozen=True, slots=True)
class Resident:
    """One whole shard in the cache, as its file tells."""

    key: str
    """Path below the cache's folder."""
    nbytes: int
    """Size of the file."""
    next_use: int
    """Earliest position at which it may be used; the number of samples when not again in this epoch."""
    mtime_ns: int = 0
    """When it was fetched. Decides between equals: the oldest goes first."""


def plan_evictions(residents: Iterable[Resident], needed: int, *, keep_until: int) -> list[Resident] | None:
    """Choose what to evict to free `needed` bytes: farthest next use first, then the oldest. Touches nothing.

    Args:
        residents: what may be chosen from.
        needed: bytes to free; nothing is chosen when it is not positive.
        keep_until: residents used at or before this position stay.

    Returns:
        No more than suffices: of the chosen, the nearest that are not needed after all stay. None when the residents
        that may go do not suffice; then what comes should be read past the cache, and nothing be evicted.
    """
    if needed <= 0:
        return []
    chosen: list[Resident] = []
    freed = 0
    for resident in sorted(residents, key=lambda r: (-r.next_use, r.mtime_ns, r.key)):
        if resident.next_use <= keep_until:
            return None
        chosen.append(resident)
        freed += resident.nbytes
        if freed >= needed:
            break
    else:
        return None
    for resident in reversed(chosen[:-1]):
        if freed - resident.nbytes >= needed:
            freed -= resident.nbytes
            chosen.remove(resident)
    return chosen


def plan_admission(
    residents: Sequence[Resident], *, nbytes: int, reserved: int, budget: int, keep_until: int
) -> list[Resident] | None:
    """What to evict so that `nbytes` more fit into the budget; None when they should be read past the cache.

    Args:
        residents: all whole shards in the folder.
        nbytes: size of the incoming shard.
        reserved: bytes of unfinished shards, which count and cannot be evicted.
        budget: bytes for everything.
        keep_until: as in `plan_evictions`. The incoming shard's own next use, when it is wanted now or soon. The last
            position of the epoch, when it is fetched far ahead: then only what this epoch no longer needs makes room,
            since a resident given up for a later fetch would itself have to be fetched again (that costs a cache of
            half the data a quarter of all fetches; see the simulation in the tests).
    """
    used = sum(resident.nbytes for resident in residents) + reserved
    if nbytes > budget:
        return None
    return plan_evictions(residents, used + nbytes - budget, keep_until=keep_until)


def fitting_window(budget: int, shard_nbytes: npt.NDArray[np.int64]) -> int:
    """The largest shuffle window, in shards of the mean size, that a budget holds whole; at least 1."""
    return max(1, budget * len(shard_nbytes) // max(1, int(shard_nbytes.sum())))
