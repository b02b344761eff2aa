"""Quantiles of a stream in bounded memory: a merging t-digest (Dunning and Ertl 2019), vectorised.

Small streams are kept whole and are exact. It depends on the values and on the pieces they come in, on nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["QuantileSketch"]

_CENTROIDS = 1000
"""About as many are kept; a rank is then off by less than 0.1 % of all in the middle, and by far less at the ends."""
_WAITING = 65_536
"""Values that are kept as they are, until they are merged."""

Floats = npt.NDArray[np.float64]


class QuantileSketch:
    """Values in, quantiles out. Not safe in threads; sketches of parts can be merged."""

    def __init__(self) -> None:
        self._means: Floats = np.empty(0)
        self._weights: Floats = np.empty(0)
        self._waiting: list[Floats] = []
        self._num_waiting = 0
        self._bounds = (np.inf, -np.inf)

    def update(self, values: npt.NDArray[Any]) -> None:
        """Take numbers, none of them NaN."""
        if not len(values):
            return
        values = values.astype(np.float64)
        self._bounds = (min(self._bounds[0], float(values.min())), max(self._bounds[1], float(values.max())))
        self._waiting.append(values)
        self._num_waiting += len(values)
        if self._num_waiting > _WAITING:
            self._compress()

    def merge(self, other: QuantileSketch) -> None:
        """Take what another one took."""
        self._bounds = (min(self._bounds[0], other._bounds[0]), max(self._bounds[1], other._bounds[1]))
        self._waiting += other._waiting
        self._num_waiting += other._num_waiting
        self._means = np.concatenate([self._means, other._means])
        self._weights = np.concatenate([self._weights, other._weights])
        if len(self._means) or self._num_waiting > _WAITING:
            self._compress()

    def quantiles(self, fractions: Sequence[float]) -> list[float]:
        """The values that these fractions of all values are at or below; NaN when there are none."""
        if not len(self._means):
            values = np.concatenate(self._waiting) if self._waiting else np.array([np.nan])
            found: list[float] = np.quantile(values, fractions, method="linear").tolist()
            return found
        self._compress()
        low, high = self._bounds
        total = self._weights.sum()
        middles = (np.cumsum(self._weights) - self._weights / 2) / total
        places = np.concatenate([[0.0], middles, [1.0]])
        values = np.concatenate([[low], self._means, [high]])
        between: list[float] = np.interp(fractions, places, values).tolist()
        return between

    def _compress(self) -> None:
        order = np.argsort(self._means, kind="stable")  # in order already, but for what was merged
        fresh = np.sort(np.concatenate([np.empty(0), *self._waiting]))
        places = np.searchsorted(fresh, self._means[order])
        means = np.insert(fresh, places, self._means[order])
        weights = np.insert(np.ones(len(fresh)), places, self._weights[order])
        self._waiting, self._num_waiting = [], 0
        if not len(means):
            return
        before = np.cumsum(weights) - weights / 2
        scale = np.arcsin(2 * np.clip(before / weights.sum(), 0, 1) - 1) / np.pi + 0.5  # small groups at both ends
        groups = np.minimum((scale * _CENTROIDS).astype(np.int64), _CENTROIDS - 1)
        begins = np.flatnonzero(np.diff(groups, prepend=-1))
        self._weights = np.add.reduceat(weights, begins)
        with np.errstate(invalid="ignore"):  # infinities of both signs meet
            self._means = np.maximum.accumulate(np.add.reduceat(means * weights, begins) / self._weights)
