"""Samples as they were read: pictures whole, or as much of a crop-addressable JPEG as some rows of its pixels need."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay.sharding import Frames, JpegLayout, JpegPlaces, sub_jpeg, sub_jpegs

__all__ = ["EncodedColumn", "JpegPart", "RawBatch", "Unread"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class JpegPart:
    """The header of a JPEG and some rows of its MCUs."""

    header: memoryview
    bands: memoryview
    first_row: int
    """Number of the row of MCUs that the bands begin with."""
    layout: JpegLayout
    read_whole: Callable[[], memoryview]
    """Reads and verifies all of it, for the careful decoder."""

    @property
    def nbytes(self) -> int:
        """Bytes that were read."""
        return len(self.header) + len(self.bands)

    def cut(self, window: tuple[int, int, int, int]) -> tuple[bytes, tuple[int, int]]:
        """A smaller JPEG that holds `window` (as stored), and where its first pixel lies; see `sub_jpegs`."""
        return sub_jpeg(self.header, self.bands, self.layout, self.first_row, window)


@dataclass(frozen=True, slots=True)
class Unread:
    """A picture that nobody was going to need."""

    read: Callable[[], memoryview]
    """Reads and verifies all of it, after all."""


@dataclass(slots=True)
class EncodedColumn:
    """A column of pictures of one batch; each is whole, a header and bands, or not read."""

    heads: list[memoryview | None]
    """By sample, the whole picture, or its header; None if it was not read."""
    bands: list[memoryview | None]
    """By sample, its bands; None of a whole picture."""
    first_rows: list[int]
    """By sample, the row of MCUs that its bands begin with."""
    rows: Sequence[int]
    """By sample, its row of the shard."""
    places: list[JpegPlaces | None]
    """By sample that was read in part, those of its shard."""
    read_whole: Callable[[int], memoryview]
    """Reads and verifies all of sample i."""

    @classmethod
    def of(cls, rows: Sequence[int], read_whole: Callable[[int], memoryview]) -> EncodedColumn:
        """Of samples that are still to be read."""
        count = len(rows)
        return cls([None] * count, [None] * count, [0] * count, rows, [None] * count, read_whole)

    def __getitem__(self, i: int) -> memoryview | JpegPart | Unread:
        head, bands, places = self.heads[i], self.bands[i], self.places[i]
        if head is None:
            return Unread(functools.partial(self.read_whole, i))
        layout = None if places is None else places.layout(self.rows[i])
        if bands is None or layout is None:
            return head
        return JpegPart(head, bands, self.first_rows[i], layout, functools.partial(self.read_whole, i))

    def cut(self, samples: Ints, windows: Ints) -> tuple[list[bytes | None], Ints]:
        """Smaller JPEGs that hold windows of some samples that were read in part, all at once; see `sub_jpegs`.

        Args:
            samples: int64 (n,).
            windows: int64 (n, 4) as stored.
        """
        taken = samples.tolist()
        heads, bands = [self.heads[i] for i in taken], [self.bands[i] for i in taken]
        frames = Frames.of([self.places[i] for i in taken], [self.rows[i] for i in taken])
        first_rows = np.array([self.first_rows[i] for i in taken], np.int64)
        return sub_jpegs(heads, bands, frames, first_rows, windows)


@dataclass(slots=True)
class RawBatch:
    """All columns of one batch."""

    values: dict[str, list[Any]] = field(default_factory=dict)
    """By column that is no picture: a numpy scalar, an array, or a memoryview of bytes for each sample."""
    pictures: dict[str, EncodedColumn] = field(default_factory=dict)
    nbytes: int = 0
    """Bytes of memory that were read into."""

    def sample(self, i: int) -> dict[str, Any]:
        """Sample `i`, by column."""
        columns: dict[str, Any] = {**self.values, **self.pictures}
        return {name: column[i] for name, column in columns.items()}
