"""Which positions of the order form which batch, on which rank: arithmetic on integers, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forebay.sharding import rank_slice

__all__ = ["BatchGrid"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchGrid:
    """The global batches of one pass over an epoch: batch b is positions [start + b*size, start + (b+1)*size)."""

    samples: int
    """Samples of the whole epoch."""
    global_batch_size: int
    """Samples of a batch, over all ranks."""
    drop_last: bool
    """Leave out a last batch that is not full; otherwise it is short."""
    start: int = 0
    """Position at which this pass begins; not 0 after a resume in mid-epoch."""
    even: bool = False
    """Give every rank as many samples of a short batch, for frameworks that gather tensors of one size over ranks."""

    def __len__(self) -> int:
        left = max(self.samples - self.start, 0)
        return left // self.global_batch_size if self.drop_last else -(-left // self.global_batch_size)

    def bounds(self, batch: int) -> tuple[int, int]:
        """The half-open range of positions of global batch `batch`, counted from this pass's start."""
        first = self.start + batch * self.global_batch_size
        return first, min(first + self.global_batch_size, self.samples)

    def position_after(self, batches: int) -> int:
        """The first position that `batches` batches have not delivered."""
        return min(self.start + batches * self.global_batch_size, max(self.samples, self.start))

    def rank_positions(
        self, batch: int, *, rank: int, world_size: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """What `rank` takes of a global batch.

        Returns:
            positions: int64 (n,), contiguous, in order. A short last batch with fewer samples than ranks gives the
                ranks that got none its last sample again, so that no rank is left without a batch; `even` does so
                also where the samples do not divide by the ranks, and all repetitions come behind the samples.
            valid: bool (n,), false for such a repeated sample.
        """
        first, stop = self.bounds(batch)
        if self.even and stop - first < self.global_batch_size:
            share = -(-(stop - first) // world_size)
            places = np.arange(first + rank * share, first + (rank + 1) * share, dtype=np.int64)
            return np.minimum(places, stop - 1), places < stop
        low, high = rank_slice(first, stop, rank=rank, world_size=world_size)
        if low == high:
            return np.array([stop - 1], dtype=np.int64), np.zeros(1, dtype=np.bool_)
        return np.arange(low, high, dtype=np.int64), np.ones(high - low, dtype=np.bool_)

    def rank_samples(self, *, rank: int, world_size: int) -> int:
        """Samples that `rank` takes of all batches, repeated ones included."""
        last = len(self) - 1  # only this one may be short
        counted = {b: len(self.rank_positions(b, rank=rank, world_size=world_size)[0]) for b in {0, last} if b >= 0}
        return sum(counted.values()) + (len(self) - len(counted)) * counted.get(0, 0)

    def repeats(self, world_size: int) -> int:
        """Samples of the last batch over all ranks, if `even` makes some ranks repeat one; else 0."""
        first, stop = self.bounds(max(len(self) - 1, 0))
        short = self.even and stop - first < self.global_batch_size
        return stop - first if short and (stop - first) % world_size else 0
