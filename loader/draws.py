"""The random numbers of a batch for one output: drawn by one vectorised call, given out by step and sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forebay.loader.randomness import DrawKey, uniforms, uniforms_of_batch

__all__ = ["NO_NUMBERS", "Draws", "Numbers", "draw"]

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Draws:
    """The numbers of one batch for the steps of one program."""

    keys: Sequence[DrawKey]
    """By step, its stream."""
    indices: Int64s
    """int64 (B,) of the samples in the data set."""
    occurrences: Int64s
    """int64 (B,) of each sample in the epoch."""
    numbers: Sequence[Float64s | None]
    """By step: float64 (B, draws) uniform numbers; None for a step that draws none."""

    def first(self, k: int) -> Float64s:
        """The numbers of step k that were drawn with the batch: float64 (B, draws)."""
        numbers = self.numbers[k]
        assert numbers is not None
        return numbers

    def more(self, k: int, samples: Int64s, count: int) -> Float64s:
        """`count` numbers for step k of some samples, float64 (n, count): the first, and those that follow them."""
        return uniforms(self.keys[k], self.indices[samples], self.occurrences[samples], count)


def draw(keys: Sequence[DrawKey], counts: Sequence[int], indices: Int64s, occurrences: Int64s) -> Draws:
    """Draw `counts[k]` numbers a sample for step k. The keys are of one seed, output and epoch."""
    drawing = [k for k, count in enumerate(counts) if count]
    numbers: list[Float64s | None] = [None] * len(counts)
    drawn = uniforms_of_batch([(keys[k], counts[k]) for k in drawing], indices, occurrences)
    for k, of_step in zip(drawing, drawn, strict=True):
        numbers[k] = of_step
    return Draws(keys, indices, occurrences, numbers)


class Numbers:
    """The numbers of one step for one sample; those beyond the first few are computed only when asked for."""

    __slots__ = ("_draws", "_i", "_k")

    def __init__(self, draws: Draws, k: int, i: int) -> None:
        self._draws, self._k, self._i = draws, k, i

    @property
    def key(self) -> DrawKey:
        """The step's stream."""
        return self._draws.keys[self._k]

    @property
    def sample(self) -> tuple[int, int]:
        """Index in the data set, and occurrence in the epoch."""
        return int(self._draws.indices[self._i]), int(self._draws.occurrences[self._i])

    def first(self) -> list[float]:
        """The numbers that were drawn with the batch."""
        return _listed(self._draws.first(self._k)[self._i])

    def block(self, number: int) -> list[float]:
        """Four numbers: draw `number` of the sample's counter."""
        first, end = self._draws.first(self._k), 4 * (number + 1)
        if end > first.shape[1]:
            first = self._draws.more(self._k, np.array([self._i]), end)
            return _listed(first[0, end - 4 :])
        return _listed(first[self._i, end - 4 : end])


NO_NUMBERS = Numbers(Draws((), np.empty(0, np.int64), np.empty(0, np.int64), ()), 0, 0)
"""For steps that draw none."""


def _listed(numbers: Float64s) -> list[float]:
    listed: list[float] = numbers.tolist()
    return listed
