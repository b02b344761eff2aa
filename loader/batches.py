"""Which positions of the order form which batch, and what fills a batch up: arithmetic on integers, nothing else.

It knows neither shards nor nodes: which rank takes which place of a batch over several nodes is `node_division`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.sharding import rank_slice

__all__ = ["BatchGrid", "BatchPlaces", "Tail"]

Tail = Literal["drop", "pad", "short"]
"""What becomes of the last samples of an epoch that fill no batch: left out, filled up with repetitions, or as few as
they are."""

Int64s = npt.NDArray[np.int64]


class BatchPlaces(NamedTuple):
    """Some places of a global batch."""

    positions: Int64s
    """int64 (n,) in the epoch."""
    occurrences: Int64s
    """int64 (n,): 0 of a sample, 1 and more of its repetitions, which only fill a place."""

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """By place, bool (n,): false for a repetition."""
        valid: npt.NDArray[np.bool_] = self.occurrences == 0
        return valid

    def take(self, which: Int64s | slice) -> BatchPlaces:
        """Some of them."""
        return BatchPlaces(self.positions[which], self.occurrences[which])


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchGrid:
    """The global batches of one pass over an epoch: batch b is positions [start + b*size, start + (b+1)*size)."""

    samples: int
    """Samples of the whole epoch."""
    global_batch_size: int
    """Samples of a batch, over all ranks."""
    tail: Tail
    """What becomes of a last batch that is not full."""
    start: int = 0
    """Position at which this pass begins; not 0 after a resume in mid-epoch."""
    even: bool = False
    """Give every rank as many samples of a short batch, for frameworks that gather tensors of one size over ranks."""

    def __len__(self) -> int:
        left = max(self.samples - self.start, 0)
        return left // self.global_batch_size if self.tail == "drop" else -(-left // self.global_batch_size)

    def bounds(self, batch: int) -> tuple[int, int]:
        """The half-open range of positions of global batch `batch`, counted from this pass's start."""
        first = self.start + batch * self.global_batch_size
        return first, min(first + self.global_batch_size, self.samples)

    def position_after(self, batches: int) -> int:
        """The first position that `batches` batches have not delivered."""
        return min(self.start + batches * self.global_batch_size, max(self.samples, self.start))

    def places(self, batch: int, *, world_size: int) -> BatchPlaces:
        """All places of a global batch, over all ranks: its samples in order, and behind them what fills it up.

        Repetitions are of the samples of the batch, from the first on. There are some in a last batch of `tail="pad"`,
        or of `even` ranks, and where there are fewer samples than ranks: no rank is left without a batch.
        """
        first, stop = self.bounds(batch)
        count = stop - first
        least = self._least(count, world_size)
        if least <= count:
            return BatchPlaces(np.arange(first, stop, dtype=np.int64), np.zeros(count, np.int64))
        numbers = np.arange(least, dtype=np.int64)
        return BatchPlaces(first + numbers % count, numbers // count)

    def _least(self, count: int, world_size: int) -> int:
        """BatchPlaces that a batch of `count` samples has at least."""
        if count < self.global_batch_size and self.tail == "pad":
            return max(self.global_batch_size, world_size)
        if count < self.global_batch_size and self.even:
            return -(-count // world_size) * world_size
        return world_size

    def rank_places(self, batch: int, *, rank: int, world_size: int) -> BatchPlaces:
        """What `rank` takes of a global batch on one node: contiguous places, one at least."""
        places = self.places(batch, world_size=world_size)
        return places.take(slice(*rank_slice(0, len(places.positions), rank=rank, world_size=world_size)))

    def weight(self, batch: int, valid: int, *, world_size: int) -> float:
        """What the mean over `valid` samples of a rank weighs in the mean over ranks: own x ranks / all."""
        first, stop = self.bounds(batch)
        return valid * world_size / (stop - first)

    def rank_samples(self, *, rank: int, world_size: int) -> int:
        """Samples that `rank` takes of all batches, repeated ones included."""
        last = len(self) - 1  # only this one may be short
        sizes = {b: len(self.rank_places(b, rank=rank, world_size=world_size).positions) for b in {0, last} if b >= 0}
        return sum(sizes.values()) + (len(self) - len(sizes)) * sizes.get(0, 0)

    def repeats(self, world_size: int) -> int:
        """Samples of the last batch over all ranks, if there are repetitions behind them; else 0."""
        if not len(self):
            return 0
        first, stop = self.bounds(len(self) - 1)
        return stop - first if len(self.places(len(self) - 1, world_size=world_size).positions) > stop - first else 0
