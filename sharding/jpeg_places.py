"""The crop-addressable JPEGs of one column of a shard: where header and bands of each sample lie, and their checksums.

Pure values: kept as arrays, checked at once for the whole shard, made into a `JpegLayout` where a sample is asked for.
In the footer stands, where A is an array as in `footer.py` and the bands of all samples follow each other:

    {"frames": A, "header_checksums": A, "band_rows": A, "band_nbytes": A, "band_checksums": A}

- `frames` int32 (rows, 8): height, width, orientation, mcu_height, mcu_width, segment, header_nbytes, number of bands;
  all 0 for a sample that is not addressable.
- `header_checksums` xxh3-64 (rows,); `band_rows`, `band_nbytes` int32 and `band_checksums` xxh3-64 (bands,).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from forebay.sharding.addressable import JpegLayout
from forebay.sharding.packed import FooterError, pack, unpack

__all__ = ["FRAME", "JpegPlaces"]

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

FRAME = ("height", "width", "orientation", "mcu_height", "mcu_width", "segment", "header_nbytes", "num_bands")
"""What the columns of `JpegPlaces.frames` are."""
_LONGEST_SIDE = (1 << 16) - 1  # a JPEG keeps its sides in 16 bits
_MCU_SIDES = (8, 16, 32)
_END_NBYTES = 2  # the EOI marker, all that follows the last band


@dataclass(frozen=True)
class JpegPlaces:
    """The layouts of a column's samples, as they stand in the footer. Make one with `of` or `from_json`."""

    frames: Int32s
    """(rows, 8) as the module says."""
    header_checksums: UInt64s
    """(rows,) xxh3-64 of each sample's header, 0 where it has none."""
    band_rows: Int32s
    """(bands,) rows of MCUs of each band, of all samples one after the other."""
    band_nbytes: Int32s
    """(bands,) length of each band."""
    band_checksums: UInt64s
    """(bands,) xxh3-64 of each band."""
    band_starts: Int64s
    """(rows + 1,) number of each sample's first band, and the number of bands."""

    @functools.cached_property
    def bands(self) -> UInt64s:
        """(3, bands): rows of MCUs, length and checksum of each band, to be taken together."""
        return np.stack((self.band_rows, self.band_nbytes, self.band_checksums), dtype=np.uint64, casting="unsafe")

    @classmethod
    def of(cls, column: str, layouts: Sequence[JpegLayout | None], nbytes: Int64s) -> Self | None:
        """The places of samples that have these layouts and (rows,) lengths; None when no sample has a layout.

        Raises:
            FooterError: a layout that no reader would take, so that no unreadable shard is written.
        """
        held = [layout for layout in layouts if layout is not None]
        if not held:
            return None
        frames = np.zeros((len(layouts), len(FRAME)), dtype=np.int32)
        header_checksums = np.zeros(len(layouts), dtype=np.uint64)
        for row, layout in enumerate(layouts):
            if layout is not None:
                frames[row] = [*(getattr(layout, name) for name in FRAME[:-1]), len(layout.band_rows)]
                header_checksums[row] = layout.header_checksum
        band_rows = np.fromiter(chain.from_iterable(layout.band_rows for layout in held), dtype=np.int32)
        band_nbytes = np.fromiter(chain.from_iterable(layout.band_nbytes for layout in held), dtype=np.int32)
        band_checksums = np.fromiter(chain.from_iterable(layout.band_checksums for layout in held), dtype=np.uint64)
        starts = _starts(frames[:, -1])
        return cls(frames, header_checksums, band_rows, band_nbytes, band_checksums, starts)._checked(column, nbytes)

    @classmethod
    def from_json(cls, column: str, entry: dict[str, Any], nbytes: Int64s) -> Self:
        """Read what `to_json` wrote for samples of (rows,) lengths, and check every number that can be checked.

        Raises:
            FooterError: an array that does not hold; says which and at which row.
            KeyError, TypeError, ValueError: not of this form.
        """
        frames = unpack(entry["frames"], "<i4", len(nbytes) * len(FRAME)).reshape(-1, len(FRAME))
        header_checksums = unpack(entry["header_checksums"], "<u8", len(nbytes))
        if frames.size and frames[:, -1].min() < 0:
            raise FooterError(f"column {column!r} has JPEGs of fewer than 0 bands")
        starts = _starts(frames[:, -1])
        bands = int(starts[-1])
        band_rows = unpack(entry["band_rows"], "<i4", bands)
        band_nbytes = unpack(entry["band_nbytes"], "<i4", bands)
        band_checksums = unpack(entry["band_checksums"], "<u8", bands)
        return cls(frames, header_checksums, band_rows, band_nbytes, band_checksums, starts)._checked(column, nbytes)

    def to_json(self) -> dict[str, str]:
        """What stands in the footer."""
        names = ("frames", "header_checksums", "band_rows", "band_nbytes", "band_checksums")
        return {name: pack(getattr(self, name)) for name in names}

    def layout(self, row: int) -> JpegLayout | None:
        """The layout of one sample; None when it is not addressable."""
        height, width, orientation, mcu_height, mcu_width, segment, header_nbytes, bands = self.frames[row].tolist()
        if not bands:
            return None
        first = int(self.band_starts[row])
        held = slice(first, first + bands)
        return JpegLayout(
            height,
            width,
            orientation,
            mcu_height,
            mcu_width,
            segment,
            header_nbytes,
            int(self.header_checksums[row]),
            tuple(self.band_rows[held].tolist()),
            tuple(self.band_nbytes[held].tolist()),
            tuple(self.band_checksums[held].tolist()),
        )

    def _checked(self, column: str, nbytes: Int64s) -> Self:
        """Itself, once every number is one that a JPEG of its length can have."""
        frames = self.frames.T.astype(np.int64)
        height, width, orientation, mcu_height, mcu_width, segment, header_nbytes, bands = frames
        tall, wide = -(-height // np.maximum(mcu_height, 1)), -(-width // np.maximum(mcu_width, 1))
        rules = {
            "size": _within(height, 1, _LONGEST_SIDE) & _within(width, 1, _LONGEST_SIDE),
            "orientation": _within(orientation, 1, 8),
            "size of an MCU": np.isin(mcu_height, _MCU_SIDES) & np.isin(mcu_width, _MCU_SIDES),
            "segment": (segment > 0) & (wide % np.maximum(segment, 1) == 0),
            "number of bands": bands > 0,
            "rows of bands": (self._sums(self.band_rows) == tall) & (self._sums(self.band_rows < 1) == 0),
            "lengths": (header_nbytes + self._sums(self.band_nbytes) + _END_NBYTES == nbytes)
            & (header_nbytes > 0)
            & (self._sums(self.band_nbytes < 1) == 0),
        }
        blank = ~self.frames.any(axis=1) & (self.header_checksums == 0)
        for what, holds in rules.items():
            if not (blank | holds).all():
                row = int(np.argmin(blank | holds))
                told = ", ".join(f"{name} {value}" for name, value in zip(FRAME, self.frames[row], strict=True))
                raise FooterError(f"column {column!r} has in row {row} a JPEG whose {what} cannot be: {told}")
        return self

    def _sums(self, of_bands: npt.NDArray[Any]) -> Int64s:
        """(rows,) the sum of a number of each band over the bands of each sample."""
        running = np.zeros(len(of_bands) + 1, dtype=np.int64)
        np.cumsum(of_bands, out=running[1:])
        sums: Int64s = np.diff(running[self.band_starts])
        return sums


def _starts(counts: Int32s) -> Int64s:
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def _within(values: Int64s, low: int, high: int) -> npt.NDArray[np.bool_]:
    return (low <= values) & (values <= high)
