"""What to keep and what to evict: pure functions of values that touch no file, no clock and no lock.

Farthest next use goes first (Belady 1966), and nothing goes that is needed as soon as what comes: then the cache would
trade one fetch for another, or go round in circles when the shuffle window is larger than the budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["FAR", "UNUSED", "Resident", "allowance", "fitting_window", "plan_admission", "plan_evictions"]

UNUSED = 1 << 62
"""Next use of a shard that no living reader will use: later than any other, so that it goes first."""

FAR = UNUSED - 1
"""`keep_until` of a shard that is fetched far ahead: only what nobody uses makes room for it. Who waits with the choice
has more to choose from: were whatever this epoch no longer needs given up for later fetches, a cache of half the data
would spare 0.41 to 0.49 of the fetches where 0.50 is possible, and two jobs 0.65 where 0.71 is (`simulation.py`)."""


@dataclass(frozen=True, slots=True)
class Resident:
    """One whole shard in the cache, as its file tells."""

    key: str
    """Path below the cache's folder."""
    nbytes: int
    """Size of the file."""
    next_use: int
    """How soon it may be used, by the reader that needs it first: bytes that this reader reads before; or `UNUSED`."""
    mtime_ns: int = 0
    """When it was fetched. Decides between equals: the oldest goes first."""


def plan_evictions(residents: Iterable[Resident], needed: int, *, keep_until: int) -> list[Resident] | None:
    """Choose what to evict to free `needed` bytes: farthest next use first, then the oldest. Touches nothing.

    Args:
        residents: what may be chosen from.
        needed: bytes to free; nothing is chosen when it is not positive.
        keep_until: residents used as soon or sooner stay.

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
        keep_until: as in `plan_evictions`. The incoming shard's own next use, when it is wanted now or soon; `FAR`,
            when it is fetched far ahead.
    """
    used = sum(resident.nbytes for resident in residents) + reserved
    if nbytes > budget:
        return None
    return plan_evictions(residents, used + nbytes - budget, keep_until=keep_until)


def allowance(budget: int, *, used: int, free: int, min_free: int) -> int:
    """Bytes that the cache may have altogether: its budget, or less where the disk would have less than a floor free.

    Args:
        budget: bytes for everything.
        used: bytes that the cache has now.
        free: bytes of the disk that nobody has.
        min_free: bytes that stay free.
    """
    return max(0, min(budget, used + free - min_free))


def fitting_window(budget: int, shard_nbytes: npt.NDArray[np.int64]) -> int:
    """The largest shuffle window, in shards of the mean size, that a budget holds whole; at least 1."""
    return max(1, budget * len(shard_nbytes) // max(1, int(shard_nbytes.sum())))
