"""How many different values a stream has, in bounded memory: the k smallest hashes (Bar-Yossef et al. 2002).

Exact up to k different values, an estimate beyond, with a standard error of 1 / sqrt(k - 2). It does not know which.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["DistinctCount"]

_KEPT = 65_536
"""Hashes: 512 KiB, and 0.4 % of standard error."""

Hashes = npt.NDArray[np.uint64]


class DistinctCount:
    """Hashes in, a number out. Not safe in threads; those of parts can be merged."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._smallest: Hashes = np.empty(0, np.uint64)
        self._is_full = False

    def update(self, hashes: Hashes) -> None:
        """Take values' 64-bit hashes."""
        if self._is_full:
            hashes = hashes[hashes < self._smallest[-1]]
        if len(hashes):
            both = np.sort(np.concatenate([self._smallest, hashes]))
            both = both[np.concatenate([[True], both[1:] != both[:-1]])]  # numpy's own `unique` takes ten times as long
            self._is_full |= len(both) > self._kept
            self._smallest = both[: self._kept]

    def merge(self, other: DistinctCount) -> None:
        """Take what another one took."""
        self.update(other._smallest)
        self._is_full |= other._is_full

    @property
    def is_exact(self) -> bool:
        """Whether `estimate` is the number itself, but for one in 10^10 that two values of that many share a hash."""
        return not self._is_full

    def estimate(self) -> int:
        """How many different values there were."""
        if self.is_exact:
            return len(self._smallest)
        return round((len(self._smallest) - 1) / (float(self._smallest[-1]) / 2.0**64))
