"""Samples that do not decode: which row fills their place, and how many are too many.

The choice is a pure function of the bad sample's own counter, so it moves no other sample, whatever the ranks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from forebay.errors import BadSampleBudgetError, ConfigError, SampleError
from forebay.loader.randomness import hash_name, philox4x64

__all__ = ["REPLACEMENT_TRIES", "BadSample", "BadSampleLog", "replacement_rows"]

logger = logging.getLogger(__name__)

REPLACEMENT_TRIES = 16
"""Rows drawn for one bad sample's place; when none is good, the shard is refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BadSample:
    """A place in the data set whose sample could not be used."""

    shard: str
    row: int
    reason: str


def replacement_rows(*, seed: int, epoch: int, index: int, rows: int) -> Iterator[int]:
    """The rows of the bad sample's shard that may fill its place, in the order of trying, at most 16.

    Args:
        seed: of the loader.
        epoch: of the pass.
        index: the bad sample's index in the data set.
        rows: of its shard.
    """
    key = seed, hash_name("forebay.replacement")
    counter = np.zeros((REPLACEMENT_TRIES // 4, 4), dtype=np.uint64)
    counter[:, 0] = np.arange(REPLACEMENT_TRIES // 4)
    counter[:, 2] = index
    counter[:, 3] = epoch
    for word in philox4x64(counter, key).ravel().tolist():
        yield (word >> 32) * rows >> 32


class BadSampleLog:
    """Counts bad samples against the budget, as batches are delivered and so in one order. Thread-safe."""

    def __init__(self, max_bad: float | None) -> None:
        if max_bad is not None and max_bad < 0:
            raise ConfigError(
                f"max_bad={max_bad}; give a number of samples, or a rate below 1, or None for the default"
            )
        self.seen = 0
        self._max_bad = max_bad
        self._bad: dict[tuple[str, int], BadSample] = {}
        self._count = 0
        self._lock = threading.Lock()

    def limit(self, seen: int) -> float:
        """Bad samples allowed among `seen`: `max_bad` as a count, or as a rate when below 1, but then at least 10."""
        if self._max_bad is None:
            return max(10.0, 0.001 * seen)
        if 0 < self._max_bad < 1:
            return max(10.0, self._max_bad * seen)
        return float(self._max_bad)

    def delivered(self, samples: int, errors: list[SampleError]) -> None:
        """Count a batch of `samples`, whose bad ones raised `errors`.

        Raises:
            BadSampleBudgetError: more were bad than allowed; names the last one.
        """
        with self._lock:
            self.seen += samples
            self._count += len(errors)
            count, seen = self._count, self.seen
            for error in errors:
                bad = BadSample(shard=error.shard, row=error.row, reason=error.reason)
                self._bad[bad.shard, bad.row] = bad
        for error in errors:
            logger.debug("skipped a bad sample: %s", error)
        if errors and count > self.limit(seen):
            last = errors[-1]
            raise BadSampleBudgetError(
                f"{count} of {seen} samples were bad, and {self.limit(seen):.0f} are allowed "
                f"(max_bad={self._max_bad}); the last one: {last}; look at loader.stats().bad, repair the data with "
                "`forebay verify` and `forebay shard`, or raise max_bad",
                bad=count,
                seen=seen,
                dataset=last.dataset,
                shard=last.shard,
                row=last.row,
                stage=last.stage,
                reason=last.reason,
            )

    @property
    def count(self) -> int:
        """Bad samples so far, a sample counted once each time that it came up."""
        return self._count

    def listed(self) -> tuple[BadSample, ...]:
        """Each bad sample once, by shard and row."""
        with self._lock:
            return tuple(self._bad[key] for key in sorted(self._bad))
