"""Which bytes of many crop-addressable JPEGs hold the rows of pixels that are wanted: a batch's, by a few calls.

The same as `bands_of` says of one. Pure values: nothing is read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forebay.sharding.addressable import JpegLayout, mcu_rows
from forebay.sharding.jpeg_places import FRAME, JpegPlaces

__all__ = ["Frames", "PartPlans", "plan_parts"]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Frames:
    """What is known of pictures before their bytes are read: int64 (n,) each, all 0 where nothing is."""

    height: Int64s
    """Pixels as stored."""
    width: Int64s
    orientation: Int64s
    mcu_height: Int64s
    mcu_width: Int64s
    segment: Int64s
    """MCUs between restart markers."""
    header_nbytes: Int64s
    bands: Int64s
    """How many; 0 of a picture that is not addressable."""

    @classmethod
    def of(cls, places: Sequence[JpegPlaces | None], rows: Sequence[int]) -> Frames:
        """Those of the samples in these rows of as many shards' places."""
        numbers = np.zeros((len(rows), len(FRAME)), np.int64)
        for i, (each, row) in enumerate(zip(places, rows, strict=True)):
            if each is not None:
                numbers[i] = each.frames[row]
        return cls(*numbers.T)

    @classmethod
    def of_layouts(cls, layouts: Sequence[JpegLayout]) -> Frames:
        """Those of crop-addressable pictures."""
        numbers = [[*(getattr(layout, name) for name in FRAME[:-1]), len(layout.band_rows)] for layout in layouts]
        return cls(*np.array(numbers, np.int64).reshape(-1, len(FRAME)).T)

    def of_some(self, which: Int64s) -> Frames:
        """Those of some of the pictures."""
        return Frames(*(getattr(self, name)[which] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class PartPlans:
    """What to read of n pictures, and what it was written with: of their bands, those that are wanted."""

    gaps: Int64s
    """int64 (n,): bytes between the header and the bands."""
    nbytes: Int64s
    """int64 (n,): length of the bands."""
    first_rows: Int64s
    """int64 (n,): number of the row of MCUs that the bands begin with."""
    pictures: Int64s
    """int64 (bands,): which of the n each band is of, ascending."""
    begins: Int64s
    """int64 (bands,): where each begins, within the bands of its picture."""
    ends: Int64s
    checksums: npt.NDArray[np.uint64]
    """uint64 (bands,): xxh3-64."""


def plan_parts(
    places: Sequence[JpegPlaces], rows: Sequence[int], frames: Frames, tops: Int64s, heights: Int64s
) -> PartPlans:
    """Choose the bands that hold pixel rows [top, top + height) of each picture, and their neighbours.

    Args:
        places: by picture, those of its shard.
        rows: by picture, its row of the shard.
        frames: of the pictures, which are all addressable.
        tops: int64 (n,) as stored.
        heights: int64 (n,), at least 1; all rows lie within the picture.
    """
    first, end = mcu_rows(tops, heights, frames.mcu_height, frames.height)
    spans = []
    for each, row in zip(places, rows, strict=True):
        begin = each.band_starts[row]
        spans.append(slice(begin, begin + each.frames[row, -1]))
    bands = np.concatenate([each.bands[:, span] for each, span in zip(places, spans, strict=True)], axis=1)
    band_rows, band_nbytes = bands[:2].astype(np.int64)
    starts = np.concatenate(([0], np.cumsum(frames.bands)))[:-1]
    pictures = np.repeat(np.arange(len(rows)), frames.bands)
    row_ends, byte_ends = np.cumsum(band_rows, dtype=np.int64), np.cumsum(band_nbytes, dtype=np.int64)
    row_ends -= (row_ends[starts] - band_rows[starts])[pictures]
    byte_ends -= (byte_ends[starts] - band_nbytes[starts])[pictures]
    row_begins, byte_begins = row_ends - band_rows, byte_ends - band_nbytes
    wanted = np.flatnonzero((row_ends > first[pictures]) & (row_begins < end[pictures]))
    of_picture = pictures[wanted]
    firsts = wanted[np.searchsorted(of_picture, np.arange(len(rows)))]
    lasts = wanted[np.searchsorted(of_picture, np.arange(len(rows)), side="right") - 1]
    gaps = byte_begins[firsts]
    return PartPlans(
        gaps=gaps,
        nbytes=byte_ends[lasts] - gaps,
        first_rows=row_begins[firsts],
        pictures=of_picture,
        begins=byte_begins[wanted] - gaps[of_picture],
        ends=byte_ends[wanted] - gaps[of_picture],
        checksums=bands[2, wanted],
    )
