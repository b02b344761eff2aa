"""Which of many adjacent intervals holds each of many numbers, faster than a binary search each."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["Intervals"]

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
        self._ends = ends
        self._guesses: npt.NDArray[np.int32] | None = None
        self._shift = np.int64(0)
        if table and len(ends):
            guesses = max(2 * len(ends), min(_GUESSES_PER_INTERVAL * len(ends), _MANY_GUESSES))
            step = -(-int(ends[-1]) // guesses)
            shift = max(step - 1, 0).bit_length()
            rounded_up = (ends + ((1 << shift) - 1)) >> shift
            self._shift = np.int64(shift)
            self._guesses = np.cumsum(np.bincount(rounded_up), dtype=np.int32)  # intervals that end at or before it

    def find(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        """The interval of each number.

        Args:
            numbers: int64 (N,), each from 0 to below the last end.

        Returns:
            intp (N,), a new array.
        """
        if self._guesses is None:
            return self._search(numbers)
        found: npt.NDArray[np.intp] = self._guesses[numbers >> self._shift].astype(np.intp)
        for _ in range(_STEPS):
            behind = numbers >= self._ends[found]
            if not behind.any():
                return found
            found += behind
        rest = np.flatnonzero(numbers >= self._ends[found])
        found[rest] = self._search(numbers[rest])
        return found

    def _search(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        found: npt.NDArray[np.intp] = np.searchsorted(self._ends, numbers, side="right")
        return found
