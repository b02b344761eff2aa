"""Which of many adjacent intervals holds each of many numbers, faster than a binary search each.

The C source is `_order.c`; without it numpy finds the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["Intervals"]

_find: Callable[..., None] | None
try:
    from forebay.sharding._order import find as _find
except ImportError:
    _find = None

_GUESSES_PER_INTERVAL: Final = 16
_MANY_GUESSES: Final = 1 << 20
_STEPS: Final = 3


class Intervals:
    """Intervals of whole numbers from 0 on, each beginning where the one before ends; some may be empty.

    Immutable, hence thread-safe.

    Args:
        ends: int64 (E,), ascending, exclusive.
        table: keep a table of first guesses, which takes some ten nanoseconds an interval to make and 64 bytes to keep
            (8 where there are very many), and makes scattered numbers ten times as fast as a search by halves. Without
            it ascending numbers are fast, too.
    """

    def __init__(self, ends: npt.NDArray[np.int64], *, table: bool) -> None:
        self._ends = np.ascontiguousarray(ends)
        self._guesses = np.empty(0, np.int32)
        self._shift = 0
        if table and len(ends):
            guesses = max(2 * len(ends), min(_GUESSES_PER_INTERVAL * len(ends), _MANY_GUESSES))
            step = -(-int(ends[-1]) // guesses)
            self._shift = max(step - 1, 0).bit_length()
            rounded_up = (ends + ((1 << self._shift) - 1)) >> self._shift
            self._guesses = np.cumsum(np.bincount(rounded_up), dtype=np.int32)  # intervals that end at or before it

    def find(self, numbers: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The interval of each number, and its place in there.

        Args:
            numbers: int64 (N,), each from 0 to below the last end.

        Returns:
            int64 (N,) each, new: interval, and distance from its begin.

        Raises:
            IndexError: a number in none of the intervals.
        """
        if _find is not None:
            found, inside = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
            _find(self._ends, self._guesses, self._shift, np.ascontiguousarray(numbers), found, inside)
            return found, inside
        if len(numbers) and (not len(self._ends) or numbers.min() < 0 or numbers.max() >= self._ends[-1]):
            raise IndexError("a number in none of the intervals")
        found = self._guess(numbers) if len(self._guesses) else self._search(numbers)
        return found, numbers - np.where(found > 0, self._ends[found - 1], 0)

    def _guess(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        found: npt.NDArray[np.int64] = self._guesses[numbers >> self._shift].astype(np.int64)
        for _ in range(_STEPS):
            behind = numbers >= self._ends[found]
            if not behind.any():
                return found
            found += behind
        rest = np.flatnonzero(numbers >= self._ends[found])
        found[rest] = self._search(numbers[rest])
        return found

    def _search(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        found: npt.NDArray[np.int64] = np.searchsorted(self._ends, numbers, side="right")
        return found
