"""Smaller JPEGs that hold windows of crop-addressable ones, put together from their headers and bands.

The C source is `_segments.c`. Without it the same is done here, picture by picture, by numpy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from forebay.errors import DecodeError
from forebay.sharding.addressable import (
    EOI,
    MARKER_NBYTES,
    JpegLayout,
    Window,
    find_markers,
    mcu_rows,
    restart_codes,
    upsampled,
)
from forebay.sharding.jpeg_header import read_header
from forebay.sharding.part_plan import Frames

__all__ = ["sub_jpeg", "sub_jpegs"]

Buffer = bytes | memoryview
Int64s = npt.NDArray[np.int64]

_cut: Callable[[list[Buffer], list[Buffer], Int64s], list[bytes | None]] | None
try:
    from forebay.sharding._segments import cut as _cut
except ImportError:
    _cut = None


def sub_jpegs(
    headers: Sequence[Buffer], bands: Sequence[Buffer], frames: Frames, first_rows: Int64s, windows: Int64s
) -> tuple[list[bytes | None], Int64s]:
    """Build smaller JPEGs that hold windows of larger ones, for any decoder.

    Decoded at full size, the pixels within a window are those of the whole picture: a smaller JPEG holds as well the
    neighbours that a decoder's smooth upsampling of colours looks at.

    Args:
        headers: by picture, the first `header_nbytes` of it.
        bands: by picture, those that `bands_of` names, or more, one after the other.
        frames: of the pictures, which are all addressable.
        first_rows: int64 (n,) number of the row of MCUs that the bands begin with.
        windows: int64 (n, 4) top, left, height and width as stored.

    Returns:
        The smaller JPEGs, None where the bytes do not hold the window; and int64 (n, 2) where in the picture the upper
        left pixel of each lies: top and left, as stored.

    Raises:
        ValueError: a window outside its picture.
    """
    tops, lefts, heights, widths = windows.T
    _check_within(tops, heights, frames.height, "rows")
    _check_within(lefts, widths, frames.width, "columns")
    first, end = mcu_rows(tops, heights, frames.mcu_height, frames.height)
    segment_widths = frames.segment * frames.mcu_width
    begin, stop = _segments(frames, segment_widths, lefts, widths)
    origins = np.stack((first * frames.mcu_height, begin * segment_widths), axis=1)
    lower = np.minimum(end * frames.mcu_height, frames.height)
    right = np.minimum(stop * segment_widths, frames.width)
    a_row = -(-frames.width // frames.mcu_width) // frames.segment
    size = lower - origins[:, 0], right - origins[:, 1]
    jobs = np.stack((first - first_rows, end - first, a_row, begin, stop, *size), axis=1)
    before = jobs[:, 0] < 0  # the bands begin below the window
    jobs[before, 0] = 0
    smaller = (_cut or _cut_here)(list(headers), list(bands), jobs)
    for i in np.flatnonzero(before).tolist():
        smaller[i] = None
    return smaller, origins


def sub_jpeg(
    header: Buffer, bands: Buffer, layout: JpegLayout, first_row: int, window: Window
) -> tuple[bytes, tuple[int, int]]:
    """`sub_jpegs` of one picture.

    Raises:
        ValueError: a window outside the picture, or bytes that do not hold it.
    """
    frames = Frames.of_layouts([layout])
    (smaller,), origins = sub_jpegs([header], [bands], frames, np.array([first_row]), np.array([window]))
    if smaller is None:
        raise ValueError(
            f"the {len(bands):,} bytes of bands from row {first_row} of MCUs on do not hold the window {window}; give "
            "all bands that bands_of names"
        )
    return smaller, (origins.item(0), origins.item(1))


def _check_within(starts: Int64s, lengths: Int64s, sides: Int64s, what: str) -> None:
    outside = np.flatnonzero((starts < 0) | (lengths < 1) | (starts + lengths > sides))
    if outside.size:
        i = outside.item(0)
        start, length, side = starts.item(i), lengths.item(i), sides.item(i)
        raise ValueError(f"pixel {what} {start} to {start + length} are not all within a picture of {side}")


def _segments(frames: Frames, segment_widths: Int64s, lefts: Int64s, widths: Int64s) -> tuple[Int64s, Int64s]:
    """First and end segment of a row that hold pixel columns and their neighbours."""
    margins = upsampled(frames.mcu_width)
    first = np.maximum(0, lefts - margins)
    end = np.minimum(frames.width, lefts + widths + margins)
    # a decoder upsamples smoothly only from 3 samples a row on (libjpeg-turbo, jdsample.c)
    first = np.where(margins > 0, np.maximum(0, np.minimum(first, frames.width - 2 * margins - 1)), first)
    return first // segment_widths, -(-end // segment_widths)


def _cut_here(headers: list[Buffer], bands: list[Buffer], jobs: Int64s) -> list[bytes | None]:
    return [_put_together(*each) for each in zip(headers, bands, jobs.tolist(), strict=True)]


def _put_together(header: Buffer, bands: Buffer, job: Sequence[int]) -> bytes | None:
    skip, rows, a_row, begin, stop, height, width = job
    view = memoryview(bands)
    codes, ends = find_markers(view)
    bounds = np.concatenate(([0], ends, [len(view) + MARKER_NBYTES]))  # as if EOI followed
    starts = np.arange(skip, skip + rows) * a_row
    needed = starts[-1] + a_row
    if needed >= len(bounds) or (codes[:needed] == 0xFF).any():  # fill bytes, which nobody writes
        return None
    begins, ends = bounds[starts + begin], bounds[starts + stop]
    lengths = ends - begins
    moved = len(header) + np.cumsum(lengths) - ends  # how much farther each row stands in the smaller JPEG
    markers = bounds[starts[:, None] + np.arange(begin + 1, stop + 1)] + moved[:, None] - MARKER_NBYTES

    parts = [view[at:end] for at, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    smaller = bytearray().join((header, *parts))
    smaller += bytes(len(header) + int(lengths.sum()) - len(smaller))  # room for EOI where no marker stands
    numbers = np.frombuffer(smaller, dtype=np.uint8)
    numbers[markers + 1] = restart_codes(markers.size).reshape(markers.shape)
    numbers[-MARKER_NBYTES:] = 0xFF, EOI
    try:
        struct.pack_into(">HH", smaller, read_header(memoryview(header)).frame_at + 5, height, width)
    except DecodeError:
        return None
    return bytes(smaller)
