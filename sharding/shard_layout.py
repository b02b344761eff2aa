"""Samples to the bytes of a shard: record batches, then the file, then the footer that knows where everything lies.

A shard is laid out in memory twice: once to learn the places, once with the footer that tells them. The footer comes
last, so the places stay true. It writes no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.sharding.addressable import JpegLayout, describe_jpeg
from forebay.sharding.checksum import sample_checksum
from forebay.sharding.footer import (
    FOOTER_METADATA_KEY,
    BatchPlaces,
    SamplePlaces,
    ShardFooter,
    batch_nbytes,
    sample_nbytes,
    sample_offsets,
)
from forebay.sharding.jpeg_places import JpegPlaces
from forebay.sharding.schema import Column, Kind, Schema
from forebay.sharding.values import EncodedSample, EncodedTensor

__all__ = ["MAGIC", "BuiltBatch", "ShardBytes", "build_batch", "lay_out_shard", "stored_nbytes"]

MAGIC = b"ARROW1"
"""First and last bytes of an Arrow IPC file."""
_LONGEST_ADDRESSABLE = (1 << 31) - 1  # bytes: the footer keeps lengths within a JPEG in 32 bits
_PLACE_NBYTES = 8 + 8 + 8 + 8  # of a placed sample: Arrow's offset; length and checksum in base64, rounded up


@dataclass(frozen=True, slots=True)
class BuiltBatch:
    """A record batch and what the footer will tell of its samples."""

    batch: pa.RecordBatch
    nbytes: dict[str, npt.NDArray[np.int64]]
    """By placed column, (rows,)."""
    checksums: dict[str, npt.NDArray[np.uint64]]
    """By placed column, (rows,)."""
    jpegs: dict[str, list[JpegLayout | None]]
    """By image column, (rows,); None for a sample that is no crop-addressable JPEG."""


@dataclass(frozen=True, slots=True)
class ShardBytes:
    """A shard as it will lie on disk."""

    data: pa.Buffer
    rows: int
    footer_nbytes: int
    """Length of the file's end that holds the footer."""
    footer_checksum: int
    """xxh3-64 of that end."""


def stored_nbytes(schema: Schema, sample: EncodedSample) -> int:
    """About how many bytes a sample adds to a shard, its share of the footer included.

    The bands of a crop-addressable JPEG, a third of a percent of it, are left out: `build_batch` finds them.
    """
    total = 0
    for column, value in zip(schema.columns, sample, strict=True):
        if isinstance(value, EncodedTensor):
            total += len(value.data) + _PLACE_NBYTES + 4 * len(value.shape)
        elif isinstance(value, bytes):
            total += len(value) + _PLACE_NBYTES
        else:
            total += np.dtype(column.dtype).itemsize
    return total


def build_batch(schema: Schema, samples: Sequence[EncodedSample]) -> BuiltBatch:
    """The record batch of some samples. Arrow's buffers are put together directly: one copy of the bytes."""
    nbytes: dict[str, npt.NDArray[np.int64]] = {}
    checksums: dict[str, npt.NDArray[np.uint64]] = {}
    jpegs: dict[str, list[JpegLayout | None]] = {}
    arrays = []
    for column, values in zip(schema.columns, zip(*samples, strict=True), strict=True):
        if column.kind is Kind.SCALAR:
            arrays.append(_scalar_array(column, values))
            continue
        data = [value.data if isinstance(value, EncodedTensor) else value for value in values]
        nbytes[column.name] = np.fromiter(map(len, data), dtype=np.int64, count=len(data))
        checksums[column.name] = np.fromiter(map(sample_checksum, data), dtype=np.uint64, count=len(data))
        if column.kind is Kind.IMAGE:
            jpegs[column.name] = [_jpeg_layout(image) for image in data]
        if column.kind is not Kind.TENSOR:
            arrays.append(_array(column.arrow_type, len(data), _offsets(nbytes[column.name], 1), b"".join(data)))
        elif column.is_variable:
            arrays.append(_variable_tensors(column, data, nbytes[column.name], [value.shape for value in values]))
        else:
            arrays.append(_fixed_tensors(column, data))
    return BuiltBatch(pa.RecordBatch.from_arrays(arrays, schema=schema.arrow_schema), nbytes, checksums, jpegs)


def lay_out_shard(schema: Schema, batches: Sequence[BuiltBatch]) -> ShardBytes:
    """The bytes of the shard that holds these batches: a function of its arguments, the same on every machine."""
    plain = _write(schema, batches, metadata=None)
    footer = _locate(schema, batches, plain)
    del plain  # half of the memory
    data = _write(schema, batches, metadata={FOOTER_METADATA_KEY: footer.encode(schema)})
    flatbuffer_nbytes = int.from_bytes(data[len(data) - len(MAGIC) - 4 : len(data) - len(MAGIC)].to_pybytes(), "little")
    footer_nbytes = flatbuffer_nbytes + 4 + len(MAGIC)
    return ShardBytes(data, footer.rows, footer_nbytes, sample_checksum(data[len(data) - footer_nbytes :]))


def _write(schema: Schema, batches: Iterable[BuiltBatch], metadata: dict[bytes, bytes] | None) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema.arrow_schema, metadata=metadata) as writer:
        for built in batches:
            writer.write_batch(built.batch)
    return sink.getvalue()


def _locate(schema: Schema, batches: Sequence[BuiltBatch], plain: pa.Buffer) -> ShardFooter:
    reader = pa.ipc.open_file(plain)
    laid = [reader.get_batch(index) for index in range(reader.num_record_batches)]  # views of `plain`: no copy
    footer = ShardFooter(np.array([batch.num_rows for batch in laid], dtype=np.int64))
    for index, column in enumerate(schema.columns):
        buffers = [batch.column(index).buffers() for batch in laid]
        if column.kind is Kind.SCALAR or column.is_variable:
            values = [found[7 if column.is_variable else 1] for found in buffers]
            nbytes = batch_nbytes(column, footer.batch_rows)
            checksums = [sample_checksum(buffer[:size]) for buffer, size in zip(values, nbytes.tolist(), strict=True)]
            footer.batched[column.name] = BatchPlaces(
                _starts(values, plain), nbytes, np.array(checksums, dtype=np.uint64)
            )
        if column.kind is not Kind.SCALAR:
            starts = _starts([found[4 if column.is_variable else 2] for found in buffers], plain)
            sizes = np.concatenate([built.nbytes[column.name] for built in batches])
            hashes = np.concatenate([built.checksums[column.name] for built in batches])
            offsets = sample_offsets(starts, sizes, footer.batch_rows)
            footer.placed[column.name] = SamplePlaces(starts, offsets, sizes, hashes)
        if column.kind is Kind.IMAGE:
            layouts = [layout for built in batches for layout in built.jpegs[column.name]]
            if (jpegs := JpegPlaces.of(column.name, layouts, sizes)) is not None:
                footer.jpegs[column.name] = jpegs
    return footer


def _starts(buffers: Iterable[pa.Buffer | None], plain: pa.Buffer) -> npt.NDArray[np.int64]:
    # A buffer without bytes lies anywhere; 0 stands for it.
    places = [buffer.address - plain.address if buffer is not None and buffer.size else 0 for buffer in buffers]
    return np.array(places, dtype=np.int64)


def _jpeg_layout(image: bytes) -> JpegLayout | None:
    return describe_jpeg(image) if len(image) <= _LONGEST_ADDRESSABLE else None


def _scalar_array(column: Column, values: Sequence[object]) -> pa.Array:
    numbers = np.array(values, dtype=np.dtype(column.dtype).newbyteorder("<"))
    data = np.packbits(numbers, bitorder="little").tobytes() if column.dtype == "bool" else numbers.tobytes()
    return _array(column.arrow_type, len(values), data)


def _fixed_tensors(column: Column, data: Sequence[bytes]) -> pa.Array:
    kind = column.arrow_type
    count = (sample_nbytes(column) or 0) // np.dtype(column.dtype).itemsize * len(data)
    values = _array(kind.value_type, count, b"".join(data))
    storage = pa.Array.from_buffers(kind.storage_type, len(data), [None], children=[values])
    return pa.ExtensionArray.from_storage(kind, storage)


def _variable_tensors(
    column: Column, data: Sequence[bytes], nbytes: npt.NDArray[np.int64], shapes: Sequence[tuple[int, ...]]
) -> pa.Array:
    kind = column.arrow_type
    lists, shape = kind.field("data").type, kind.field("shape").type
    itemsize = np.dtype(column.dtype).itemsize
    values = _array(lists.value_type, int(nbytes.sum()) // itemsize, b"".join(data))
    offsets = pa.py_buffer(_offsets(nbytes, itemsize))
    sizes = np.fromiter(chain.from_iterable(shapes), dtype="<i4")
    children = [
        pa.Array.from_buffers(lists, len(data), [None, offsets], children=[values]),
        pa.Array.from_buffers(shape, len(data), [None], children=[_array(pa.int32(), sizes.size, sizes.tobytes())]),
    ]
    return pa.Array.from_buffers(kind, len(data), [None], children=children)


def _array(kind: pa.DataType, count: int, *buffers: bytes) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, *map(pa.py_buffer, buffers)])


def _offsets(nbytes: npt.NDArray[np.int64], itemsize: int) -> bytes:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(nbytes // itemsize)]).astype("<i8").tobytes()
