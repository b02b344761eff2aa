"""The index: one row a shard, and the fingerprint that follows from it.

An Arrow IPC file of one record batch, so that 10^6 shards are views of one buffer and are checked by whole columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from forebay.errors import ManifestError
from forebay.sharding.manifest import FILE_NAME
from forebay.sharding.schema import Schema

__all__ = ["ShardEntry", "ShardIndex", "encode_index", "fingerprint_of"]

MAX_TOTAL = float(1 << 62)
_ARROW_SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("nbytes", pa.int64(), nullable=False),
        pa.field("footer_nbytes", pa.int64(), nullable=False),
        pa.field("footer_checksum", pa.uint64(), nullable=False),
        pa.field("checksum", pa.binary(16), nullable=False),
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEntry:
    """One row of the index."""

    name: str
    rows: int
    nbytes: int
    footer_nbytes: int
    footer_checksum: int
    """xxh3-64 of the last `footer_nbytes` bytes."""
    checksum: bytes
    """xxh3-128 of the file, 16 bytes big-endian."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardIndex:
    """The shards of a data set, column by column: read-only views of the index file."""

    names: pa.StringArray
    """(shards,) file names in ascending order of their bytes, which makes them different."""
    rows: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    footer_nbytes: npt.NDArray[np.int64]
    footer_checksums: npt.NDArray[np.uint64]
    checksums: npt.NDArray[np.uint8]
    """(shards, 16)."""
    encoded: memoryview
    """The content of the index file, which all the others are views of."""

    @classmethod
    def decode(cls, data: memoryview, where: str) -> ShardIndex:
        """Read what `encode_index` wrote, believing none of it. Copies nothing.

        Args:
            data: the content of the index file; must stay as it is.
            where: name of the data set, for messages.

        Raises:
            ManifestError: not an index, or with names, sizes or counts that cannot be.
        """
        try:
            reader = pa.ipc.open_file(pa.py_buffer(data))
            if reader.num_record_batches != 1 or not reader.schema.equals(_ARROW_SCHEMA):
                raise ManifestError(f"the index of {where} has other columns than an index has: {reader.schema.names}")
            batch = reader.get_batch(0)
            batch.validate(full=True)  # a false offset would lead Arrow out of the buffer
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            if isinstance(error, ManifestError):
                raise
            raise ManifestError(f"the index of {where} is no Arrow file of one record batch: {error}") from error
        if any(batch.column(name).null_count for name in _ARROW_SCHEMA.names):
            raise ManifestError(f"the index of {where} holds nulls")
        _check_names(batch["name"], where)
        index = cls(
            names=batch["name"],
            rows=batch["rows"].to_numpy(),
            nbytes=batch["nbytes"].to_numpy(),
            footer_nbytes=batch["footer_nbytes"].to_numpy(),
            footer_checksums=batch["footer_checksum"].to_numpy(),
            checksums=_fixed_binary(batch["checksum"]),
            encoded=data,
        )
        _check_counts(index, where)
        return index

    def __reduce__(self) -> tuple[Callable[[bytes], ShardIndex], tuple[bytes]]:
        return _unpickled, (bytes(self.encoded),)


def _unpickled(data: bytes) -> ShardIndex:
    return ShardIndex.decode(memoryview(data), "a copy from another process")


def encode_index(shards: Sequence[ShardEntry]) -> pa.Buffer:
    """The content of the index file: the same bytes for equal shards."""
    columns = [
        pa.array([shard.name for shard in shards], pa.string()),
        pa.array([shard.rows for shard in shards], pa.int64()),
        pa.array([shard.nbytes for shard in shards], pa.int64()),
        pa.array([shard.footer_nbytes for shard in shards], pa.int64()),
        pa.array([shard.footer_checksum for shard in shards], pa.uint64()),
        pa.array([shard.checksum for shard in shards], pa.binary(16)),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _ARROW_SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_ARROW_SCHEMA))
    return sink.getvalue()


def fingerprint_of(schema: Schema, rows: npt.NDArray[np.int64], checksums: npt.NDArray[np.uint8]) -> str:
    """What a data set is, in 32 hexadecimal digits: its schema and, in order, each shard's rows and checksum.

    Args:
        schema: of the data set.
        rows: (shards,).
        checksums: (shards, 16).
    """
    state = xxhash.xxh3_128(schema.canonical() + b"\n")
    state.update(np.ascontiguousarray(rows, dtype="<i8").data)
    state.update(np.ascontiguousarray(checksums).data)
    return state.hexdigest()


def _fixed_binary(array: pa.FixedSizeBinaryArray) -> npt.NDArray[np.uint8]:
    if not len(array):
        return np.empty((0, 16), dtype=np.uint8)
    return np.frombuffer(array.buffers()[1], dtype=np.uint8, count=16 * len(array)).reshape(-1, 16)


def _check_names(names: pa.StringArray, where: str) -> None:
    good = pc.match_substring_regex(names, rf"\A{FILE_NAME}\z")
    if not pc.all(good, min_count=0).as_py():
        bad = names[pc.index(good, False).as_py()].as_py()
        raise ManifestError(f"the index of {where} names a shard {bad!r}, which is not a plain file name in its folder")
    ascending = pc.less(names[:-1], names[1:]) if len(names) > 1 else pa.array([], pa.bool_())
    if not pc.all(ascending, min_count=0).as_py():
        place = pc.index(ascending, False).as_py()
        first, second = names[place].as_py(), names[place + 1].as_py()
        raise ManifestError(f"the index of {where} names shards out of order or twice: {first!r}, {second!r}")


def _check_counts(index: ShardIndex, where: str) -> None:
    if not len(index.rows):
        return
    # Sums in float64 cannot wrap round: what is below 2^62 there is exact enough in int64.
    sums = [index.rows.sum(dtype=np.float64), index.nbytes.sum(dtype=np.float64)]
    if index.rows.min() < 0 or index.footer_nbytes.min() < 1 or max(sums) >= MAX_TOTAL:
        raise ManifestError(f"the index of {where} has counts that cannot be: rows or bytes below 0, or 2^62 together")
    if (index.footer_nbytes > index.nbytes).any():
        place = int((index.footer_nbytes > index.nbytes).argmax())
        raise ManifestError(
            f"the index of {where} gives shard {index.names[place].as_py()} a footer longer than the file"
        )
