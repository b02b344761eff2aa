"""How data behind a network is read: how many requests at once, how long to try, when to ask a second time.

A value, and the two decisions that follow from it: when to try again, and when a request has been silent for too long.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from forebay.errors import ConfigError

__all__ = ["Pace", "RemoteConfig", "pause_s"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
MOST_DOUBLINGS = 16
SLOWEST_NBYTES_PER_S = 1_000_000
SLOW_FACTOR = 4
KEPT = 7 / 8


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteConfig:
    """How data behind a network is read."""

    connections: int = 32
    """Requests at once for the samples of a batch, and again for whole shards. 32 samples then cost one round trip."""
    ahead_nbytes: int = 32 << 20
    """Most bytes asked for at once for the shards that are fetched whole, by `connections` requests at most. It is
    twice what the link has been seen to carry in a round trip; 32 MiB fill a link of 500 MB/s and 30 ms."""
    piece_nbytes: int = 2 << 20
    """Most bytes of each of these requests: long beside a round trip, short to wait for."""
    merge_nbytes: int = 64 << 10
    """Wanted ranges that are so near to each other are one request: at 100 MB/s the gap takes less than 1 ms."""
    retry_limit_s: float = 60.0
    """How long a range is tried for before an error is raised: longer than a bucket's usual bad minute."""
    silence_s: float = 15.0
    """A connection on which nothing comes for so long is given up, and the request made again."""
    hedge_s: float = 1.0
    """A request that takes longer than this, and four times as long as its like, is made a second time beside it."""

    def __post_init__(self) -> None:
        for name in ("connections", "ahead_nbytes", "piece_nbytes", "retry_limit_s", "silence_s", "hedge_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)}; give a positive number", name=name)
        if self.merge_nbytes < 0:
            raise ConfigError(f"merge_nbytes={self.merge_nbytes}; give 0 to merge only what touches")


def pause_s(failures: int, chance: float) -> float:
    """How long to wait before the next try: up to twice as long each time, by chance between a half and all of it.

    Args:
        failures: how many tries have failed, at least 1.
        chance: 0 to 1; drawn anew each time, so that clients that failed together do not come back together.
    """
    longest: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures - 1, MOST_DOUBLINGS))
    return longest * (0.5 + 0.5 * chance)


class Pace:
    """How long requests of each size take, and so which is late. Thread-safe.

    Args:
        hedge_s: no request is late sooner.
    """

    def __init__(self, hedge_s: float) -> None:
        self._hedge_s = hedge_s
        self._means: dict[int, float] = {}  # seconds, by size: its number of bits, halved
        self._lock = threading.Lock()

    def add(self, nbytes: int, seconds: float) -> None:
        """A request of this size was answered."""
        size = nbytes.bit_length() // 2
        with self._lock:
            mean = self._means.get(size, seconds)
            self._means[size] = KEPT * mean + (1 - KEPT) * seconds

    def late_after_s(self, nbytes: int) -> float:
        """How long to wait for a request of this size before it is made a second time."""
        with self._lock:
            mean = self._means.get(nbytes.bit_length() // 2)
        usual = nbytes / SLOWEST_NBYTES_PER_S if mean is None else SLOW_FACTOR * mean
        return max(self._hedge_s, usual)
