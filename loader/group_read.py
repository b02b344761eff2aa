"""The bytes of many samples in one call: planned column by column, brought near, loaded and verified, then given out.

What is not as it was written is read again by itself, which heals it or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.loader.encoded import EncodedColumn
from forebay.sharding import (
    FILLED,
    GAP_NBYTES,
    FileRange,
    Frames,
    JpegPlaces,
    PartPlans,
    Ranges,
    ReadMemory,
    ShardReader,
    bring_near,
    plan_parts,
)

__all__ = ["GroupRead", "RowsNeeded"]

Ints = npt.NDArray[np.int64]
RowsNeeded = Callable[[str, Ints, Frames], tuple[Ints, Ints]]
"""Told column, places in the batch and frames of crop-addressable JPEGs, it says which rows of pixels are needed: first
and number, as stored, int64 (n,) each; 0 of those that are to be read whole."""

_NOTHING = memoryview(b"")  # until it has come


class _Parts(NamedTuple):
    """Crop-addressable JPEGs of which some rows are read."""

    samples: Ints
    """Their places in the group."""
    places: list[JpegPlaces]
    """By picture, those of its shard."""
    tops: Ints
    heights: Ints
    plans: PartPlans
    header_nbytes: Ints
    headers: Ints
    """By picture, the number of the range that its header lies in."""
    bands: Ints
    """The same of its bands: the header's, or one of their own."""
    begins: Ints
    """Where the bands begin in theirs."""


class GroupRead:
    """A group of samples on their way in. One thread; the shards stay open until all is given out.

    Args:
        readers: by sample.
        rows: by sample.
        low: place in the batch of the group's first sample.
        memory: to read into.
    """

    def __init__(self, readers: Sequence[ShardReader], rows: Sequence[int], low: int, memory: ReadMemory) -> None:
        self._readers, self._rows, self._low, self._memory = readers, rows, low, memory
        self._ranges = Ranges()
        self._pieces: list[Ints] = []
        self._checksums: list[npt.NDArray[np.uint64]] = []
        self._whole: dict[str, list[tuple[int, int]]] = {}
        self._parts: dict[str, _Parts] = {}
        self._sound: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        far = {reader for reader in set(readers) if reader.far}
        self._far = {i for i, reader in enumerate(readers) if reader in far} if far else set[int]()
        self._wanted: list[FileRange] = []  # what of far shards will be read
        self._deferred: list[tuple[int, int, str, int, int]] = []  # number of the range, sample, column, begin, bytes

    def plan_values(self, column: str) -> None:
        """Have near what `scalars` or `tensors` will read."""
        for i in self._far:
            self._wanted += self._readers[i].ranges_of(self._rows[i], column)

    def scalars(self, column: str) -> list[Any]:
        """By sample, its value in a scalar column."""
        if self._far:
            return [reader.scalar(row, column) for reader, row in zip(self._readers, self._rows, strict=True)]
        return [reader.scalars(column)[row] for reader, row in zip(self._readers, self._rows, strict=True)]

    def tensors(self, column: str) -> list[Any]:
        """By sample, its array in a tensor column."""
        return [reader.value(row, column) for reader, row in zip(self._readers, self._rows, strict=True)]

    def plan_whole(self, column: str, samples: Sequence[int] | None = None) -> None:
        """Have all bytes of a column loaded, or those of some samples."""
        chosen = range(len(self._rows)) if samples is None else samples
        if not chosen:
            self._whole[column] = []
            return
        places = [self._readers[i].places(self._rows[i], column) for i in chosen]
        numbers = [
            self._take(i, column, offset, 0, nbytes) for i, (offset, nbytes, _) in zip(chosen, places, strict=True)
        ]
        self._whole[column] = list(zip(chosen, numbers, strict=True))
        _, lengths, checksums = zip(*places, strict=True)
        self._verify(
            np.array(numbers), np.zeros(len(numbers), np.int64), np.array(lengths), np.array(checksums, np.uint64)
        )

    def _take(self, i: int, column: str, offset: int, begin: int, nbytes: int) -> int:
        """One more range: bytes of a sample from `begin` on, which stands at `offset` of its file."""
        fd = self._readers[i].fileno()
        if i in self._far:
            self._wanted.append(self._readers[i].range_of(offset + begin, nbytes))
            number = self._ranges.add(_NOTHING, FILLED, offset + begin)
            self._deferred.append((number, i, column, begin, nbytes))
            return number
        if fd == FILLED:
            view = self._readers[i].read_unverified(self._rows[i], column, begin, nbytes, self._memory)
        else:
            view = self._memory.take(nbytes)
        return self._ranges.add(view, fd, offset + begin)

    def plan_pictures(
        self, column: str, needed: RowsNeeded | None, unread: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """Have pictures loaded: of crop-addressable JPEGs, what the rows of pixels that are needed lie in.

        Args:
            column: of pictures.
            needed: as of `ReaderPool.read_batch`.
            unread: bool (n,), by place in the batch, which nobody needs; None: all are needed.
        """
        wanted = np.ones(len(self._rows), np.bool_)
        if unread is not None:
            wanted = ~unread[self._low : self._low + len(self._rows)]
        places = [reader.jpeg_places(column) for reader in self._readers]
        frames = Frames.of(places, self._rows)
        heights = np.zeros(len(places), np.int64)
        addressable = np.flatnonzero((frames.bands > 0) & wanted)
        if needed is not None and addressable.size:
            tops = np.zeros_like(heights)
            tops[addressable], heights[addressable] = needed(
                column, addressable + self._low, frames.of_some(addressable)
            )
            samples = np.flatnonzero(heights)
            found = [each for i in samples.tolist() if (each := places[i]) is not None]
            if found:
                self._plan_parts(column, samples, found, frames.of_some(samples), tops[samples], heights[samples])
        self.plan_whole(column, np.flatnonzero((heights == 0) & wanted).tolist())

    def _plan_parts(
        self, column: str, samples: Ints, places: list[JpegPlaces], frames: Frames, tops: Ints, heights: Ints
    ) -> None:
        rows = [self._rows[i] for i in samples.tolist()]
        plans = plan_parts(places, rows, frames, tops, heights)
        together = plans.gaps < GAP_NBYTES
        begins = frames.header_nbytes + plans.gaps
        firsts = np.where(together, begins + plans.nbytes, frames.header_nbytes)
        headers, bands = [], []
        each = map(_listed, (samples, firsts, together, begins, plans.nbytes))
        for i, first, joined, begin, nbytes in zip(*each, strict=True):
            offset = self._readers[i].places(self._rows[i], column)[0]
            headers.append(self._take(i, column, offset, 0, first))
            bands.append(headers[-1] if joined else self._take(i, column, offset, begin, nbytes))
        of_header, of_bands = np.array(headers), np.array(bands)
        begins = np.where(together, begins, 0)
        checksums = np.array([each.header_checksums[row] for each, row in zip(places, rows, strict=True)], np.uint64)
        self._verify(of_header, np.zeros_like(of_header), frames.header_nbytes, checksums)
        shift = begins[plans.pictures]
        self._verify(of_bands[plans.pictures], plans.begins + shift, plans.ends + shift, plans.checksums)
        self._parts[column] = _Parts(
            samples, places, tops, heights, plans, frames.header_nbytes, of_header, of_bands, begins
        )

    def _verify(self, numbers: Ints, begins: Ints, ends: Ints, checksums: npt.NDArray[np.uint64]) -> None:
        self._pieces.append(np.stack((numbers, begins, ends), axis=1))
        self._checksums.append(checksums)

    @property
    def far(self) -> bool:
        """Whether something was planned that takes a round trip."""
        return bool(self._wanted)

    def bring_near(self) -> None:
        """Have all that was planned come that is far, at once. Takes no memory: other groups may be read meanwhile."""
        bring_near(self._wanted)

    def load(self) -> None:
        """Read and verify all that was planned and is near."""
        for number, i, column, begin, nbytes in self._deferred:
            view = self._readers[i].read_unverified(self._rows[i], column, begin, nbytes, self._memory)
            self._ranges.views[number] = view
        if not self._ranges.views:
            return
        pieces, checksums = np.concatenate(self._pieces), np.concatenate(self._checksums)
        order = np.argsort(pieces[:, 0], kind="stable")
        self._sound = self._ranges.load(pieces[order], checksums[order])

    @property
    def read_nbytes(self) -> int:
        """Bytes that were loaded."""
        return sum(map(len, self._ranges.views))

    def whole(self, column: str) -> list[memoryview]:
        """By planned sample, all of its bytes."""
        return [self._checked(i, column, number) for i, number in self._whole[column]]

    def _checked(self, i: int, column: str, number: int) -> memoryview:
        if self._sound[number]:
            return self._ranges.views[number]
        return self._readers[i].read(self._rows[i], column, self._memory)

    def give_pictures(self, column: str, to: EncodedColumn) -> None:
        """Put what was loaded of a column of pictures in its places of the batch."""
        for i, number in self._whole[column]:
            to.heads[self._low + i] = self._checked(i, column, number)
        parts = self._parts.get(column)
        if parts is None:
            return
        views, sound = self._ranges.views, self._sound.tolist()
        columns = (parts.samples, parts.header_nbytes, parts.headers, parts.bands, parts.begins, parts.plans.first_rows)
        for j, (i, nbytes, header, bands, begin, first_row) in enumerate(zip(*map(_listed, columns), strict=True)):
            place = self._low + i
            if sound[header] and sound[bands]:
                to.heads[place] = views[header][:nbytes]
                to.bands[place] = views[bands][begin:] if begin else views[bands]
            else:
                alone = self._readers[i].read_jpeg(
                    self._rows[i], column, int(parts.tops[j]), int(parts.heights[j]), self._memory
                )
                to.heads[place], to.bands[place], first_row = alone
            to.first_rows[place] = first_row
            to.places[place] = parts.places[j]


def _listed(numbers: Ints) -> list[int]:
    listed: list[int] = numbers.tolist()
    return listed
