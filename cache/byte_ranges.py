"""A set of bytes of a file, as ranges: what has come, what is on its way, what is missing.

A value with a little arithmetic; its owner guards it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

__all__ = ["ByteRanges"]


class ByteRanges:
    """Disjoint ranges, ascending; those that touch are one. Few: each operation may look at all of them."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._begins, self._ends, strict=True)))

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return sum(self._ends) - sum(self._begins)

    def add(self, begin: int, end: int) -> None:
        """Put these bytes in; some may be there."""
        if begin >= end:
            return
        low = bisect.bisect_left(self._ends, begin)
        high = bisect.bisect_right(self._begins, end)
        if low < high:
            begin, end = min(begin, self._begins[low]), max(end, self._ends[high - 1])
        self._begins[low:high] = [begin]
        self._ends[low:high] = [end]

    def remove(self, begin: int, end: int) -> None:
        """Take these bytes out; some may not be there."""
        if begin >= end:
            return
        kept = [
            part for low, high in self for part in ((low, min(high, begin)), (max(low, end), high)) if part[0] < part[1]
        ]
        self._begins = [low for low, _ in kept]
        self._ends = [high for _, high in kept]

    def gaps(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """What is missing of these bytes, ascending. It must not change meanwhile."""
        place = bisect.bisect_right(self._ends, begin)
        while begin < end:
            if place == len(self._begins) or self._begins[place] >= end:
                yield begin, end
                return
            if begin < self._begins[place]:
                yield begin, self._begins[place]
            begin = self._ends[place]
            place += 1

    def covers(self, begin: int, end: int) -> bool:
        """Whether all of these bytes are there."""
        return next(self.gaps(begin, end), None) is None

    def meets(self, begin: int, end: int) -> bool:
        """Whether any of these bytes is there."""
        return begin < end and next(self.gaps(begin, end), None) != (begin, end)

    def clear(self) -> None:
        """Take everything out."""
        self._begins, self._ends = [], []
