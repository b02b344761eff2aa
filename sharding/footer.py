"""The footer's metadata of a shard: where every sample lies in the file, how long it is, and its checksum.

Pure values: it reads no file and calls no Arrow. In the Arrow footer stands one key, `forebay`, with JSON:

    {"version": 1, "batch_rows": A, "columns": {NAME: {"starts": A, "nbytes": A, "checksums": A, "shapes": {...}}}}

where A is an array of little-endian numbers in base64, so that the value is valid UTF-8 as Arrow demands. `starts` is
where a column's bytes begin in the file, one int64 a record batch; the samples of a batch follow without a gap.

- Placed columns (all but scalars): `nbytes` int64 a sample (left out for fixed-shape tensors, whose samples are all
  equally long), `checksums` xxh3-64 a sample. Variable-shape tensors also have `shapes`, laid out like a scalar column.
- Image columns with crop-addressable JPEGs also have `jpeg`, see `jpeg_places.py`; readers that do not know it read
  the samples whole.
- Scalar columns: `checksums` xxh3-64 a record batch.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay.sharding.jpeg_places import JpegPlaces
from forebay.sharding.packed import FooterError, pack, unpack
from forebay.sharding.schema import Column, Kind, Schema

__all__ = ["FOOTER_METADATA_KEY", "FOOTER_VERSION", "BatchPlaces", "FooterError", "SamplePlaces", "ShardFooter"]

FOOTER_METADATA_KEY = b"forebay"
FOOTER_VERSION = 1

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class SamplePlaces:
    """Where the samples of a placed column lie."""

    starts: Int64s
    """(batches,) where the bytes of each record batch begin in the file."""
    offsets: Int64s
    """(rows,) where each sample begins in the file."""
    nbytes: Int64s
    """(rows,) length of each sample."""
    checksums: UInt64s
    """(rows,) xxh3-64 of each sample's bytes."""


@dataclass(frozen=True, slots=True)
class BatchPlaces:
    """Where the values of a scalar column, or the shapes of a tensor column, lie."""

    starts: Int64s
    """(batches,) where the values of each record batch begin in the file."""
    nbytes: Int64s
    """(batches,) length of the values of each record batch."""
    checksums: UInt64s
    """(batches,) xxh3-64 of the values of each record batch."""


@dataclass(frozen=True, slots=True)
class ShardFooter:
    """What a shard tells of itself."""

    batch_rows: Int64s
    """(batches,) rows of each record batch."""
    placed: dict[str, SamplePlaces] = field(default_factory=dict)
    """By column: image, mask, bytes, str, json, tensor."""
    batched: dict[str, BatchPlaces] = field(default_factory=dict)
    """By column: scalars, and the shapes of variable-shape tensors."""
    jpegs: dict[str, JpegPlaces] = field(default_factory=dict)
    """By column: images, where one or more are crop-addressable."""

    @property
    def rows(self) -> int:
        """Rows of the shard."""
        return int(self.batch_rows.sum())

    def encode(self, schema: Schema) -> bytes:
        """The metadata's value."""
        columns: dict[str, Any] = {}
        for column in schema:
            batched = self.batched.get(column.name)
            shapes = batched and {"starts": pack(batched.starts), "checksums": pack(batched.checksums)}
            if column.kind is Kind.SCALAR:
                columns[column.name] = shapes
                continue
            places = self.placed[column.name]
            entry: dict[str, Any] = {"starts": pack(places.starts), "checksums": pack(places.checksums)}
            if sample_nbytes(column) is None:
                entry["nbytes"] = pack(places.nbytes)
            if shapes:
                entry["shapes"] = shapes
            if column.name in self.jpegs:
                entry["jpeg"] = self.jpegs[column.name].to_json()
            columns[column.name] = entry
        value = {"version": FOOTER_VERSION, "batch_rows": pack(self.batch_rows), "columns": columns}
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes, columns: tuple[Column, ...], *, rows: int, limit: int) -> ShardFooter:
        """Read what `encode` wrote, for some columns, and check that every place lies within the file.

        Args:
            value: the metadata's value.
            columns: those wanted.
            rows: how many the index says the shard has.
            limit: bytes of the shard before its footer.

        Raises:
            FooterError: written by a newer version, or not of this form, or with places outside the file.
        """
        try:
            content = json.loads(value)
            if content["version"] != FOOTER_VERSION:
                raise FooterError(
                    f"its format is version {content['version']!r} and this forebay reads {FOOTER_VERSION}; "
                    f"upgrade with `pip install -U forebay`"
                )
            batch_rows = unpack(content["batch_rows"], "<i8")
            if np.any((batch_rows < 0) | (batch_rows > rows)) or batch_rows.sum() != rows:
                raise FooterError(f"its record batches have {batch_rows.sum()} rows, and the index says {rows}")
            if rows > 8 * limit:  # every column takes a bit a row or more
                raise FooterError(f"it cannot hold {rows} rows in {limit} bytes")
            footer = cls(batch_rows)
            for column in columns:
                footer._decode_column(column, content["columns"][column.name], limit)
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            if isinstance(error, FooterError):
                raise
            raise FooterError(f"its footer is not of forebay's form ({type(error).__name__}: {error})") from error
        return footer

    def _decode_column(self, column: Column, entry: dict[str, Any], limit: int) -> None:
        if column.kind is Kind.SCALAR:
            self.batched[column.name] = _decode_batched(column, entry, self.batch_rows, limit)
            return
        rows = self.rows
        starts = unpack(entry["starts"], "<i8", len(self.batch_rows))
        fixed = sample_nbytes(column)
        checksums = unpack(entry["checksums"], "<u8", rows)
        nbytes = unpack(entry["nbytes"], "<i8", rows) if fixed is None else np.full(rows, fixed, dtype=np.int64)
        if nbytes.size and not 0 <= nbytes.min() <= nbytes.max() <= limit:
            raise FooterError(f"column {column.name!r} has samples longer than the file")
        offsets = sample_offsets(starts, nbytes, self.batch_rows)
        if nbytes.size and not (0 <= offsets.min() <= offsets.max() <= limit and (offsets + nbytes).max() <= limit):
            raise FooterError(f"column {column.name!r} has samples outside the file")
        self.placed[column.name] = SamplePlaces(starts, offsets, nbytes, checksums)
        if column.kind is Kind.IMAGE and "jpeg" in entry:
            self.jpegs[column.name] = JpegPlaces.from_json(column.name, entry["jpeg"], nbytes)
        if column.is_variable:
            self.batched[column.name] = _decode_batched(column, entry["shapes"], self.batch_rows, limit)


def sample_nbytes(column: Column) -> int | None:
    """Length of each sample of a fixed-shape tensor column, None for columns whose samples differ in length."""
    if column.kind is not Kind.TENSOR or column.is_variable:
        return None
    return math.prod(size or 0 for size in column.shape or ()) * np.dtype(column.dtype).itemsize


def batch_nbytes(column: Column, rows: Int64s) -> Int64s:
    """Length of the values of a scalar column, or of the shapes of a tensor column, in batches of `rows` rows."""
    if column.kind is Kind.TENSOR:
        return rows * (4 * len(column.shape or ()))
    return (rows + 7) // 8 if column.dtype == "bool" else rows * np.dtype(column.dtype).itemsize


def sample_offsets(starts: Int64s, nbytes: Int64s, batch_rows: Int64s) -> Int64s:
    """Where each sample begins: a running sum of lengths that starts anew at each batch's start."""
    before = np.cumsum(nbytes) - nbytes
    first = np.cumsum(batch_rows) - batch_rows
    filled = batch_rows > 0
    jump = starts[filled] - before[first[filled]]
    offsets: Int64s = before + np.repeat(jump, batch_rows[filled])
    return offsets


def _decode_batched(column: Column, entry: dict[str, Any], batch_rows: Int64s, limit: int) -> BatchPlaces:
    starts = unpack(entry["starts"], "<i8", len(batch_rows))
    checksums = unpack(entry["checksums"], "<u8", len(batch_rows))
    nbytes = batch_nbytes(column, batch_rows)
    if starts.size and not (0 <= starts.min() <= starts.max() <= limit and (starts + nbytes).max() <= limit):
        raise FooterError(f"column {column.name!r} has values outside the file")
    return BatchPlaces(starts, nbytes, checksums)
