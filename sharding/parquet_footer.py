"""The footer of a Parquet file: what it says of the file, checked, and no more of it than orders and units need.

It reads the last bytes of a file. Row groups are read in `parquet_read`.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from forebay.errors import SchemaError, ShardCorruptError
from forebay.sharding.source import SourceFile

__all__ = ["FileFacts", "Footer", "facts_of", "parse_footer", "read_footer", "read_reasons"]

FIRST_NBYTES = 64 << 10
"""What is read first: most footers are shorter, and a second read is a round trip."""
LIMIT_NBYTES = 1 << 30
THRIFT_LIMIT = 256 << 20
"""Bytes of a string, and members of a list, that a footer may claim."""
MAX_ROWS = 1 << 62
read_reasons = (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError, KeyError, TypeError)
"""What pyarrow raises for files that it cannot read."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a table remembers of one file."""

    nbytes: int
    mtime_ns: int
    """0 where the place has none. A guard of this copy: it is no part of the fingerprint."""
    checksum: bytes
    """xxh3-128 of the footer."""
    schema: bytes
    """Arrow's, serialised, without metadata."""
    group_rows: tuple[int, ...]
    group_nbytes: tuple[int, ...]
    """Of all columns, decompressed, as the footer says."""


@dataclass(frozen=True, slots=True)
class Footer:
    """A footer in memory."""

    content: bytes
    checksum: bytes
    """xxh3-128 of it, 16 bytes."""


def read_footer(file: SourceFile, name: str) -> Footer:
    """Read the footer of a file.

    Args:
        file: opened.
        name: of the file and its table, for messages.

    Raises:
        ShardCorruptError: it has none: empty, cut short, encrypted, or no Parquet file.
        SourceError: it cannot be read.
    """
    if file.nbytes < 12:
        raise _refused(name, f"it has {file.nbytes} bytes, fewer than an empty Parquet file")
    have = min(file.nbytes, FIRST_NBYTES)
    tail = file.read(file.nbytes - have, have)
    magic = bytes(tail[-4:])
    if magic == b"PARE":
        raise _refused(name, "its footer is encrypted, which is not supported")
    if magic != b"PAR1":
        raise _refused(name, f"it ends with {magic!r} and not with b'PAR1': it is another kind of file, or cut short")
    nbytes = int.from_bytes(tail[-8:-4], "little") + 8
    if nbytes > min(file.nbytes - 4, LIMIT_NBYTES):
        raise _refused(name, f"it claims a footer of {nbytes - 8} bytes in a file of {file.nbytes}: it is cut short")
    if nbytes > have:
        tail = file.read(file.nbytes - nbytes, nbytes)
    content = bytes(tail[-nbytes:])
    return Footer(content, xxhash.xxh3_128_digest(content))


def parse_footer(footer: Footer, name: str) -> tuple[pq.FileMetaData, pa.Schema]:
    """What a footer says: the metadata that reading takes, and Arrow's schema.

    Raises:
        ShardCorruptError: it says what cannot be.
        SchemaError: two columns have one name.
    """
    try:
        file = pq.ParquetFile(
            pa.BufferReader(footer.content),
            thrift_string_size_limit=THRIFT_LIMIT,
            thrift_container_size_limit=THRIFT_LIMIT,
        )
        metadata, schema = file.metadata, file.schema_arrow.remove_metadata()
        names = schema.names
        schema.serialize()
    except read_reasons as error:
        raise _refused(name, f"its footer: {_one_line(error)}") from error
    twice = sorted({column for column in names if names.count(column) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise SchemaError(
            f"{name} has two columns called {twice[0]!r}, and a batch holds one of each name; write the file anew",
            path=name,
            column=twice[0],
        )
    return metadata, schema


def facts_of(file: SourceFile, name: str, mtime_ns: int) -> FileFacts:
    """Read and check one file's footer.

    Raises:
        ShardCorruptError, SchemaError, SourceError: as `read_footer` and `parse_footer`.
    """
    footer = read_footer(file, name)
    metadata, schema = parse_footer(footer, name)
    rows, nbytes, columns = [], [], {metadata.num_columns}
    try:
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            columns.add(group.num_columns)
            rows.append(group.num_rows)
            nbytes.append(min(max(group.total_byte_size, 0), MAX_ROWS))
    except read_reasons as error:
        raise _refused(name, f"row group {len(rows)} of its footer: {_one_line(error)}") from error
    if len(columns) > 1:
        raise _refused(name, f"its schema and its row groups have different numbers of columns: {sorted(columns)}")
    if any(count < 0 for count in rows) or sum(rows) >= MAX_ROWS:
        raise _refused(name, f"its row groups claim {min(rows)} to {max(rows)} rows")
    return FileFacts(
        nbytes=file.nbytes,
        mtime_ns=mtime_ns,
        checksum=footer.checksum,
        schema=schema.serialize().to_pybytes(),
        group_rows=tuple(rows),
        group_nbytes=tuple(nbytes),
    )


def _one_line(error: BaseException) -> str:
    return " ".join(f"{error}".split())[:500] or type(error).__name__


def _refused(name: str, reason: str) -> ShardCorruptError:
    return ShardCorruptError(
        f"{name} cannot be read as Parquet: {reason}; copy it again from where it came, or leave it out by giving a "
        f"list or a glob of files",
        path=name,
        reason=reason,
    )
