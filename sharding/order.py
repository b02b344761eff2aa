"""The epoch's order: a function from positions to samples, known at once and everywhere, with no array of samples.

For one data set, seed, epoch and window the order is fixed, whatever the number of ranks, threads or the batch size.
How it is mixed stands in `staggered`; which rank takes which part of a global batch is `rank_slice` here and, over
several nodes, decided elsewhere, by the `places` of shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from forebay.errors import ConfigError
from forebay.sharding.intervals import Intervals
from forebay.sharding.permutation import CHUNK, Permutation, derive_key
from forebay.sharding.staggered import StaggeredWindow

__all__ = ["EpochOrder", "ShardSpan", "default_window", "rank_slice"]

_SPANS_AT_ONCE: Final = 1024


@dataclass(frozen=True, slots=True)
class ShardSpan:
    """Where in the epoch a shard may be used: at no position outside [first, last)."""

    shard: int
    first: int
    last: int


def default_window(num_shards: int) -> int:
    """The window when none is given: 64 shards, and all of them when there are at most 128.

    It depends on the data set alone, so that every machine shuffles alike. 64 shards of 64 MiB are 4 GiB of cache.
    """
    return num_shards if num_shards <= 128 else 64


def rank_slice(start: int, stop: int, *, rank: int, world_size: int) -> tuple[int, int]:
    """The positions of [start, stop) that one rank takes: contiguous, and as even as can be.

    Returns:
        first and end of the slice; ranks in order make up the range without gap or overlap.
    """
    num_positions = stop - start
    return start + num_positions * rank // world_size, start + num_positions * (rank + 1) // world_size


class EpochOrder:
    """Which sample comes at which position of one epoch, each exactly once.

    Thread-safe.

    Args:
        shard_rows: int64 (S,), rows of each shard in storage order, zeros allowed; kept, not copied.
        fingerprint: of the data set.
        seed: any integer.
        epoch: from 0.
        shuffle: False gives storage order, whatever the window.
        window: how many shards are mixed at a time; None for `default_window`. All shards or more: the exact shuffle,
            any sample anywhere. 1: shard by shard, with the rows of each shuffled. Neighbours are of one shard with a
            probability of 1 / window, for equal shards; windows between a half and all of the shards mix a little
            less (4 / 3 / window at worst), since fewer shards take part at both ends of the epoch.

    Raises:
        ConfigError: the window is less than 1.
    """

    def __init__(
        self,
        shard_rows: npt.NDArray[np.int64],
        *,
        fingerprint: str,
        seed: int,
        epoch: int,
        shuffle: bool,
        window: int | None = None,
    ) -> None:
        if window is not None and window < 1:
            raise ConfigError(
                f"window={window} shards to shuffle over; give 1 or more, or None for the default", window=window
            )
        num_shards = len(shard_rows)
        self.window = max(1, min(default_window(num_shards) if window is None else window, num_shards))
        """Shards mixed at a time: the given number, or all shards if they are fewer."""
        self._order: StaggeredWindow | _StorageOrder
        if shuffle and self.window < num_shards:
            self._order = StaggeredWindow(
                shard_rows, fingerprint=fingerprint, seed=seed, epoch=epoch, window=self.window
            )
        else:
            key = derive_key(fingerprint, seed, epoch, "samples")
            self._order = _StorageOrder(shard_rows, key if shuffle else None)
        self.samples = self._order.samples
        """Samples of the epoch: positions run from 0 to below it."""
        self.seed, self.epoch, self.shuffle = seed, epoch, shuffle
        self._num_shards = num_shards
        self._shard_rows = shard_rows
        self._fingerprint = fingerprint
        self._following: EpochOrder | None = None

    def following(self) -> EpochOrder:
        """The next epoch's order, of the same settings; made when first asked for, then kept."""
        if self._following is None:
            self._following = EpochOrder(
                self._shard_rows,
                fingerprint=self._fingerprint,
                seed=self.seed,
                epoch=self.epoch + 1,
                shuffle=self.shuffle,
                window=self.window,
            )
        return self._following

    def locate(self, positions: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The sample at each position. Long ranges are the cheapest: 25 ns a position, 100 without the native part.

        Args:
            positions: int64 (N,), in any order, repeated or not.

        Returns:
            shard index and row in the shard, both int64 (N,) and new.

        Raises:
            IndexError: a position lies outside the epoch.
        """
        positions = np.asarray(positions, np.int64)
        if len(positions) and (positions.min() < 0 or positions.max() >= self.samples):
            wrong = positions.min() if positions.min() < 0 else positions.max()
            raise IndexError(f"position {wrong} of an epoch of {self.samples} samples")
        shards = np.empty(len(positions), np.int64)
        rows = np.empty(len(positions), np.int64)
        for begin in range(0, len(positions), CHUNK):
            piece = slice(begin, begin + CHUNK)
            shards[piece], rows[piece] = self._order.locate(positions[piece])
        return shards, rows

    def places(self, shards: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The place of each shard in the epoch's order of shards, from 0.

        In storage order, and in the exact shuffle, which uses all shards at once, that is the order of storage.

        Args:
            shards: int64 (N,).

        Returns:
            int64 (N,).
        """
        return self._order.places(shards)

    def spans(self, start: int = 0) -> Iterator[ShardSpan]:
        """The shards in order of their first possible use at or after `start`, one by one as they are asked for.

        Yields:
            Spans with `first` not before `start`; shards without rows, or used only before it, are left out.
        """
        for begin in range(self._order.first_place(start), self._num_shards, _SPANS_AT_ONCE):
            places = np.arange(begin, min(begin + _SPANS_AT_ONCE, self._num_shards))
            shards, first, last = self._order.uses(places)
            ahead = (last > start) & (last > first)
            first = np.maximum(first, start)
            for span in zip(shards[ahead].tolist(), first[ahead].tolist(), last[ahead].tolist(), strict=True):
                yield ShardSpan(*span)

    def next_use(self, shards: npt.NDArray[np.int64], position: int) -> npt.NDArray[np.int64]:
        """The earliest position, `position` or later, at which each shard may be used.

        Args:
            shards: int64 (N,).
            position: from 0 to `samples`.

        Returns:
            int64 (N,); `samples` for shards that are not used again in this epoch.
        """
        return self._order.next_use(shards, position)

    def mean_cipher_calls(self) -> float:
        """Calls of the cipher that one permutation takes, on average over all samples, at most; 0 in storage order.

        1 is the ideal; what is above is walks that leave a range and come back (see `permutation`).
        """
        return self._order.mean_cipher_calls()


class _StorageOrder:
    """Storage order, or (with a key) the exact shuffle of all samples."""

    def __init__(self, shard_rows: npt.NDArray[np.int64], key: int | None) -> None:
        self._ends = np.cumsum(shard_rows)
        self._rows = shard_rows
        self.samples = int(self._ends[-1]) if len(self._ends) else 0
        self._shuffle = None if key is None else Permutation(self.samples, key)
        self._intervals = Intervals(self._ends, table=key is not None)

    def locate(self, positions: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        samples = positions if self._shuffle is None else self._shuffle.permute(positions)
        return self._intervals.find(samples)

    def places(self, shards: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return shards

    def uses(
        self, shards: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        ends, rows = self._ends[shards], self._rows[shards]
        if self._shuffle is None:
            return shards, ends - rows, ends
        return shards, np.zeros_like(rows), np.where(rows > 0, self.samples, 0)

    def first_place(self, position: int) -> int:
        return int(np.searchsorted(self._ends, position, side="right")) if self._shuffle is None else 0

    def next_use(self, shards: npt.NDArray[np.int64], position: int) -> npt.NDArray[np.int64]:
        _, first, last = self.uses(shards)
        return np.where((last > first) & (position < last), np.maximum(first, position), self.samples)

    def mean_cipher_calls(self) -> float:
        return 0.0 if self._shuffle is None else self._shuffle.mean_calls()
