"""Samples of map-style data sets that raise: which other one fills the place, and which errors are no sample's fault.

The choice is a function of base seed, epoch and index, so it is the same whatever the workers and the batch.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forebay.errors import SampleError
from forebay.loader.bad_samples import REPLACEMENT_TRIES, replacement_rows

__all__ = ["BadFetch", "Replacements", "as_sample_errors"]

BadFetch = tuple[int, str]
"""Index of a sample that raised, and what it raised."""


@dataclass(slots=True)
class Replacements:
    """Fills the places of bad samples. Thread-safe while nobody changes its epoch."""

    seed: int
    """Base seed of the pass."""
    epoch: int
    size: int
    """Samples of the data set."""

    def fetch(self, dataset: Any, index: Any) -> tuple[Any, list[BadFetch]]:
        """The sample at `index`, or the one that fills its place; with the bad ones met on the way.

        Raises:
            Exception: what the data set raised, when that says nothing about the sample, or when no sample that was
                tried in its place is good.
        """
        try:
            return dataset[index], []
        except Exception as error:
            if not is_of_sample(error):
                error.add_note(
                    f"while the data set fetched sample {index!r:.200}; not skipped: it is no sample's fault"
                )
                raise
            bad, first = [(operator.index(index), _reason(error))], error
        rows = replacement_rows(seed=self.seed, epoch=self.epoch, index=bad[0][0] % (1 << 64), rows=self.size)
        for row in rows:
            try:
                return dataset[row], bad
            except Exception as error:
                if not is_of_sample(error):
                    raise
                bad.append((row, _reason(error)))
        first.add_note(
            f"while the data set fetched sample {index!r:.200}; {REPLACEMENT_TRIES} others that were drawn for its "
            f"place raised too, the last one sample {bad[-1][0]}: {bad[-1][1]}"
        )
        raise first


def is_of_sample(error: Exception) -> bool:
    """Whether an error may be one sample's: memory is not, nor is what the system says about disk or network.

    Pillow raises `OSError` for a damaged picture too, but without the system's number.
    """
    return not isinstance(error, MemoryError) and not (isinstance(error, OSError) and error.errno is not None)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def as_sample_errors(dataset: str, bad: Sequence[BadFetch]) -> list[SampleError]:
    """Bad samples as the log of bad samples takes them."""
    return [
        SampleError(
            f"sample {index} of {dataset} raised {reason}",
            dataset=dataset,
            shard="",
            row=index,
            stage="fetch",
            reason=reason,
        )
        for index, reason in bad
    ]
