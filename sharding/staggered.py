"""The staggered window: shuffles an epoch while no more than `window` shards are in use at any position of it.

The shards come in a random order. The rows of a shard are permuted and cut into `window` parts; part p of the shard at
place s of that order belongs to step s + p, and the samples of a step are permuted. So a step mixes `window` shards,
and from one step to the next one shard leaves and one enters. A block is a step, but the first window - 1 steps, which
hold fewer shards, are one block, and so are the last. Block b draws on the `window` places from b - 1 on, as far as
they exist.

A part has rows // window rows, and the first rows % window parts have one more. That would put the few rows of a small
shard side by side in the epoch, so they are spread over the parts evenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from forebay.sharding.intervals import Intervals
from forebay.sharding.permutation import CHUNK, Permutation, PermutationFamily, derive_key

__all__ = ["StaggeredWindow"]

Int64s = npt.NDArray[np.int64]

_MOST_PIECES: Final = 1 << 16
"""Pieces (a shard's share of a block) laid out at once: bounds the memory of scattered positions and large windows."""


class StaggeredWindow:
    """The staggered order of one epoch.

    Immutable but for one remembered value, which is replaced whole: thread-safe.

    Args:
        shard_rows: int64 (S,), kept, not copied.
        fingerprint: of the data set.
        seed: any integer.
        epoch: from 0.
        window: from 1 to S - 1.
    """

    def __init__(self, shard_rows: Int64s, *, fingerprint: str, seed: int, epoch: int, window: int) -> None:
        self._shard_rows = shard_rows
        self._window = window
        self._few = min(window, ceil(2 * sqrt(window)))  # r rows side by side are neighbours once in r² pairs or so
        self._row_key = derive_key(fingerprint, seed, epoch, "rows")
        self._block_key = derive_key(fingerprint, seed, epoch, "block")
        self._shards, self._places = _shard_order(len(shard_rows), derive_key(fingerprint, seed, epoch, "shards"))
        self._last_block = len(shard_rows) - window + 2
        self._bounds = self._block_bounds()
        self._recent: _Layout | None = None

    @property
    def samples(self) -> int:
        """Rows of all shards together."""
        return int(self._bounds[-1])

    def locate(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Shard and row of each position; see `EpochOrder.locate`."""
        low, high = np.searchsorted(self._bounds, [positions.min(), positions.max()], side="right") - 1
        block = np.searchsorted(self._bounds[low + 1 : high + 1], positions, side="right")
        if high - low < len(positions):
            blocks, which = np.arange(low, high + 1), block
        else:
            blocks, which = np.unique(block + low, return_inverse=True)
        if len(blocks) > 1 and len(blocks) * self._window > _MOST_PIECES:
            shards, rows = np.empty_like(positions), np.empty_like(positions)
            later = which >= len(blocks) // 2
            for half in (np.flatnonzero(~later), np.flatnonzero(later)):
                shards[half], rows[half] = self.locate(positions[half])
            return shards, rows
        layout = self._recent
        if layout is None or not np.array_equal(layout.blocks, blocks):
            self._recent = layout = self._lay_out(blocks)
        return layout.locate(positions, which)

    def _lay_out(self, blocks: Int64s) -> _Layout:
        """Find out which rows of which shards make up some blocks (ascending, no block twice)."""
        begins = self._bounds[blocks]
        sizes = self._bounds[blocks + 1] - begins
        places = (blocks - 1)[:, np.newaxis] + np.arange(self._window)
        if blocks[-1] - blocks[0] + 1 == len(blocks):  # they share most of their places
            distinct = np.arange(blocks[0] - 1, blocks[-1] + self._window - 1)
            which = places - distinct[0]
        else:
            distinct = places.ravel()
            which = np.arange(len(distinct)).reshape(places.shape)
        beyond = (distinct < 0) | (distinct >= len(self._shards))
        shards = self._shards[np.where(beyond, 0, distinct)].astype(np.int64)
        rows = np.where(beyond, 0, self._shard_rows[shards])
        piece_rows = rows[which]
        first = self._cut(piece_rows, self._first_step(blocks)[:, np.newaxis] - places)
        counts = self._cut(piece_rows, self._first_step(blocks + 1)[:, np.newaxis] - places) - first
        filled = np.flatnonzero(counts)
        first, counts, which = first.ravel()[filled], counts.ravel()[filled], which.ravel()[filled]
        if len(filled) < len(distinct):
            shards, rows, which = shards[which], rows[which], np.arange(len(which))
        ends = np.cumsum(counts)
        return _Layout(
            blocks=blocks,
            begins=begins,
            shuffle=PermutationFamily(sizes, self._block_key, blocks),
            shift=np.cumsum(sizes) - sizes,
            pieces=Intervals(ends, table=True),
            first=first,
            place=which,
            shards=shards,
            rows=PermutationFamily(rows, self._row_key, shards),
        )

    def places(self, shards: Int64s) -> Int64s:
        """The place of each shard in the order; see `EpochOrder.places`."""
        return self._places[shards].astype(np.int64)

    def uses(self, places: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Shard, first position and end of the last block of each place; equal positions where there are no rows."""
        shards = self._shards[places].astype(np.int64)
        rows = self._shard_rows[shards]
        few = (rows < self._few) & (rows > 0)
        last_part = np.where(few, (rows - 1) * self._window // np.maximum(rows, 1), np.minimum(rows, self._window) - 1)
        first = self._bounds[self._block(places)]
        last = self._bounds[self._block(places + last_part) + 1]
        return shards, first, np.where(rows > 0, last, first)

    def first_place(self, position: int) -> int:
        """The first place whose shard may be used at or after a position."""
        return max(0, int(np.searchsorted(self._bounds, position, side="right")) - 2)

    def next_use(self, shards: Int64s, position: int) -> Int64s:
        """See `EpochOrder.next_use`."""
        block = np.searchsorted(self._bounds, position, side="right") - 1
        places = self.places(shards)
        rows = self._shard_rows[shards]
        part = np.clip(self._first_step(np.array([block])) - places, 0, self._window)
        row = self._cut(rows, part)
        few = rows < self._few
        part = np.where(few, row * self._window // np.maximum(rows, 1), part)
        use = np.maximum(self._bounds[self._block(places + part)], position)
        return np.where(row < rows, use, self._bounds[-1])

    def mean_cipher_calls(self) -> float:
        """See `EpochOrder.mean_cipher_calls`: over the permutations of all blocks and of all shards' rows."""
        calls = 0.0
        for sizes in (np.diff(self._bounds), self._shard_rows):
            for begin in range(0, len(sizes), CHUNK):
                piece = sizes[begin : begin + CHUNK]
                calls += float(PermutationFamily(piece, 0, piece).mean_calls() @ piece)
        return calls / (2 * max(self.samples, 1))

    def _cut(self, rows: Int64s, parts: Int64s) -> Int64s:
        """Rows of a shard before a part; all of them for parts from `window` on."""
        parts = np.minimum(np.maximum(parts, 0), self._window)
        few = rows < self._few
        if few.all():
            return self._spread(rows, parts)
        each = rows // self._window
        cut = parts * each + np.minimum(parts, rows - each * self._window)
        return np.where(few, self._spread(rows, parts), cut) if few.any() else cut

    def _spread(self, rows: Int64s, parts: Int64s) -> Int64s:
        """Rows before a part when row r is in part r * window // rows."""
        return (parts * rows + (self._window - 1)) // self._window

    def _first_step(self, blocks: Int64s) -> Int64s:
        """The first step of each block; for what comes after the last block, one after all parts of all shards."""
        steps = np.where(blocks <= 0, 0, blocks + (self._window - 2))
        return np.where(blocks > self._last_block, len(self._shards) + self._window, steps)

    def _block(self, steps: Int64s) -> Int64s:
        """The block that each step belongs to."""
        return np.clip(steps - (self._window - 2), 0, self._last_block)

    def _block_bounds(self) -> Int64s:
        """int64 (blocks + 1,): the first position of each block, and the number of samples."""
        window, num_shards = self._window, len(self._shards)
        rows = self._shard_rows[self._shards]
        few = np.flatnonzero(rows < self._few)
        few_rows = rows[few]
        rows[few] = 0
        change = np.zeros(num_shards + window, np.int64)  # of the size from one step to the next
        change[:num_shards] = rows // window
        change[window:] -= rows // window
        rows %= window
        change[:num_shards] += rows > 0
        ends = np.flatnonzero(rows)
        np.subtract.at(change, ends + rows[ends], 1)
        sizes = np.cumsum(change, out=change)
        for row in range(int(few_rows.max(initial=0))):
            few, few_rows = few[few_rows > row], few_rows[few_rows > row]
            np.add.at(sizes, few + row * window // few_rows, 1)
        starts = np.cumsum(sizes, out=sizes)  # of the step after
        bounds = np.zeros(self._last_block + 2, np.int64)
        bounds[1:-1] = starts[window - 2 : num_shards] if window > 1 else np.append(0, starts[:num_shards])
        bounds[-1] = starts[-1]
        return bounds


@dataclass(frozen=True, slots=True)
class _Layout:
    """U blocks, laid out as N pieces (a piece: the rows of one shard in one block) that draw on D shards."""

    blocks: Int64s
    begins: Int64s
    """(U,) first position of each block."""
    shuffle: PermutationFamily
    """(U,) the samples of each block."""
    shift: Int64s
    """(U,) samples in the blocks laid out before this one."""
    pieces: Intervals
    first: Int64s
    """(N,) row of its shard that each piece begins with."""
    place: npt.NDArray[np.intp]
    """(N,) the entry of each piece in `shards` and `rows`."""
    shards: Int64s
    rows: PermutationFamily

    def locate(self, positions: Int64s, which: npt.NDArray[np.intp]) -> tuple[Int64s, Int64s]:
        """Shard and row of each position, given which of the blocks it is in."""
        sample = self.shuffle.permute(positions - self.begins[which], which)
        sample += self.shift[which]
        piece, row = self.pieces.find(sample)
        row += self.first[piece]
        place = self.place[piece]
        return self.shards[place], self.rows.permute(row, place)


def _shard_order(num_shards: int, key: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The shard of each place, and the place of each shard."""
    shuffle = Permutation(num_shards, key)
    shards = np.empty(num_shards, np.int32)
    for begin in range(0, num_shards, CHUNK):
        shards[begin : begin + CHUNK] = shuffle.permute(np.arange(begin, min(begin + CHUNK, num_shards)))
    places = np.empty(num_shards, np.int32)
    places[shards] = np.arange(num_shards)
    return shards, places
