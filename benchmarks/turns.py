"""Passes over data, timed in turn: a machine that slows down slows every side, and no side always goes first."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from torch import Tensor

__all__ = ["PassTime", "Ratio", "take_turns", "time_pass"]

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class PassTime:
    """How long one pass took."""

    images: int
    seconds: float
    """From the question for the first batch to the end of the last one."""
    first_batch_s: float
    """From the same question to the first batch."""

    @property
    def images_per_s(self) -> float:
        """Images a second."""
        return self.images / self.seconds


class Ratio(NamedTuple):
    """How many times as fast: of rounds, each of which is a pair, not of medians."""

    median: float
    smallest: float
    largest: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
        """Divide what was measured in the same rounds."""
        ratios = [mine / its for mine, its in zip(ours, theirs, strict=True)]
        return cls(statistics.median(ratios), min(ratios), max(ratios))


def take_turns(
    sides: Mapping[str, Callable[[], _Result]], *, rounds: int, progress: Callable[[str], None]
) -> dict[str, list[_Result]]:
    """Run every side once to warm it up, then `rounds` times in turn; each goes first in turn.

    Args:
        sides: by name, what makes one pass and tells how it went.
        rounds: passes of each side after the first.
        progress: told the name of a side before each of its passes.

    Returns:
        By side, what its passes told: the one that warms up, then those of the rounds.
    """
    told: dict[str, list[_Result]] = {name: [] for name in sides}
    for number in range(-1, rounds):
        names = list(sides)
        first = max(number, 0) % len(names)
        for name in names[first:] + names[:first]:
            progress(name)
            told[name].append(sides[name]())
    return told


def time_pass(begin: Callable[[], Iterable[Tensor]], check: Callable[[Tensor], None] = lambda _: None) -> PassTime:
    """Receive all batches of one pass as fast as they come.

    Args:
        begin: starts the pass; counts as part of the first batch.
        check: looks at each batch, briefly.
    """
    images, first_s = 0, 0.0
    started = time.monotonic()
    for batch in begin():
        if not images:
            first_s = time.monotonic() - started
        images += len(batch)
        check(batch)
    return PassTime(images, time.monotonic() - started, first_s)
