"""How many bytes to have under way for what is fetched ahead: enough to fill the link, and no queue before the rest.

The link's rate times its delay, twice, as both have been seen lately (the bandwidth-delay product, estimated as by BBR:
Cardwell et al., *BBR: Congestion-Based Congestion Control*, 2016). It makes no requests.
"""

from __future__ import annotations

import math
import threading
from collections import deque

__all__ = ["LinkDepth"]

GAIN = 2
"""Of the product: twice lets the estimate double each round trip while the link has room."""
LATELY_S = 10.0
"""How long the fastest rate and the shortest delay are believed."""
SLOT_S = 0.1
"""Over which a rate is taken, at least: pieces arrive in bursts."""


class LinkDepth:
    """Told of every answer; says how much may be under way. Thread-safe.

    What is under way hides the link's own delay behind a queue, so that every `LATELY_S` seconds the least is let
    under way for two delays, and the delay seen anew.

    Args:
        least: bytes, which is also what it begins with.
        most: bytes.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = min(least, most), most
        self._delay_s, self._seen_at = math.inf, 0.0
        self._emptying_since: float | None = None
        self._seen_anew_s = math.inf
        self._rates: deque[tuple[float, float]] = deque()  # when, bytes a second; ascending, descending
        self._slot: tuple[float, int] | None = None  # when it began, bytes since
        self._lock = threading.Lock()

    def add(self, nbytes: int, seconds: float, *, now: float) -> None:
        """A request was answered.

        Args:
            nbytes: of the answer.
            seconds: that it took.
            now: a monotonic clock.
        """
        with self._lock:
            self._add_delay(seconds, now)
            self._add_rate(nbytes, seconds, now)

    def _add_delay(self, seconds: float, now: float) -> None:
        if seconds <= self._delay_s:
            self._delay_s, self._seen_at = seconds, now
            self._emptying_since = None
        elif self._emptying_since is None:
            if now - self._seen_at > LATELY_S:
                self._emptying_since, self._seen_anew_s = now, math.inf
        elif (asked_at := now - seconds) >= self._emptying_since + self._delay_s:  # asked for without a queue
            self._seen_anew_s = min(self._seen_anew_s, seconds)
            if asked_at >= self._emptying_since + 2 * self._delay_s:
                self._delay_s, self._seen_at = self._seen_anew_s, now
                self._emptying_since = None

    def _add_rate(self, nbytes: int, seconds: float, now: float) -> None:
        begin, arrived = self._slot or (now - seconds, 0)
        arrived += nbytes
        if now - begin >= max(SLOT_S, self._delay_s):
            rate = arrived / (now - begin)
            while self._rates and self._rates[-1][1] <= rate:
                self._rates.pop()
            self._rates.append((now, rate))
            while now - self._rates[0][0] > LATELY_S:
                self._rates.popleft()
            begin, arrived = now, 0
        self._slot = begin, arrived

    def nbytes(self) -> int:
        """How much may be under way now."""
        with self._lock:
            if not self._rates or self._emptying_since is not None:
                return self._least
            wanted = GAIN * self._rates[0][1] * self._delay_s
        return int(min(max(wanted, self._least), self._most))
