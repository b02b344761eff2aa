"""The random numbers of a batch for one output: drawn by one vectorised call, given out by step and sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forebay.loader.randomness import DrawKey, uniforms, uniforms_of_batch

__all__ = ["Draws", "Numbers", "draw"]

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
    numbers: Sequence[list[list[float]] | None]
    """By step: (B, draws) uniform numbers; None for a step that draws none."""


def draw(keys: Sequence[DrawKey], counts: Sequence[int], indices: Int64s, occurrences: Int64s) -> Draws:
    """Draw `counts[k]` numbers a sample for step k. The keys are of one seed, output and epoch."""
    drawing = [k for k, count in enumerate(counts) if count]
    numbers: list[list[list[float]] | None] = [None] * len(counts)
    drawn = uniforms_of_batch([(keys[k], counts[k]) for k in drawing], indices, occurrences)
    for k, of_step in zip(drawing, drawn, strict=True):
        numbers[k] = of_step.tolist()
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
        numbers = self._draws.numbers[self._k]
        assert numbers is not None
        return numbers[self._i]

    def block(self, number: int) -> list[float]:
        """Four numbers: draw `number` of the sample's counter."""
        first = self.first()
        if 4 * (number + 1) <= len(first):
            return first[4 * number : 4 * (number + 1)]
        index, occurrence = self.sample
        drawn = uniforms(self.key, np.array([index]), np.array([occurrence]), 4 * (number + 1))
        block: list[float] = drawn[0, 4 * number :].tolist()
        return block
