"""A table in Parquet files as a data set whose shards are units: row groups, divided and joined.

`ParquetTable` is what lies there; `ParquetDataset` is what is read of it: columns, and the rows that a filter leaves.
Reading is `parquet_read`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from forebay.errors import SchemaError, SourceError
from forebay.sharding.far import FarSource
from forebay.sharding.index import ShardEntry, ShardIndex, encode_index, fingerprint_of
from forebay.sharding.manifest import INDEX_NAME, FileEntry, Manifest
from forebay.sharding.parquet_facts import TableFacts
from forebay.sharding.parquet_filter import filter_identity, identity_of
from forebay.sharding.parquet_paths import Partitions, parse_partitions
from forebay.sharding.parquet_schema import SchemaChange, fixed_width, unify_schemas
from forebay.sharding.parquet_units import Units, plan_units
from forebay.sharding.schema import Schema
from forebay.sharding.source import Source, SourceFile
from forebay.sharding.stored import StoredDataset

__all__ = ["UNIT_WRITER", "ParquetDataset", "ParquetTable", "plan_table_units"]

Int64s = npt.NDArray[np.int64]
UNIT_WRITER = "parquet-units"
"""What the manifest of such a data set says under `writer`: its shards are made, not copied."""
_VERSION = b"forebay table 1"
_NO_COLUMNS = Schema.from_spec({"row": "bytes"})
"""The manifest of shards has a schema of samples; a table's columns are Arrow's and stand in the checksums."""


class ParquetTable:
    """The files of a table, with one schema for all. Immutable; pickles where its source does.

    Args:
        source: that the files lie in.
        facts: of their footers.
        schema_change: what may differ between files.

    Raises:
        SchemaError: the files' columns differ by more, or a folder is named after a column that the files have too.
    """

    def __init__(self, source: Source, facts: TableFacts, schema_change: SchemaChange = "error") -> None:
        self.source = source
        self.facts = facts
        self.name = source.name
        self.file_schemas = [pa.ipc.read_schema(pa.py_buffer(schema)) for schema in facts.schemas]
        """By `facts.schema_ids`."""
        first = {int(k): facts.paths[i] for i, k in reversed(list(enumerate(facts.schema_ids.tolist())))}
        named = [(first[k], schema) for k, schema in enumerate(self.file_schemas) if k in first]
        in_files = unify_schemas(named, schema_change, self.name) if named else pa.schema([])
        self.partitions: Partitions = parse_partitions(facts.paths, self.name)
        both = [field.name for field in self.partitions.fields if field.name in in_files.names]
        if both:
            raise SchemaError(
                f"{self.name}: {both[0]!r} is a column of the files and of the folders' names too; leave the files out "
                f"of such folders (give them as a list), or rename the folders",
                column=both[0],
            )
        self.in_files: pa.Schema = in_files
        """Columns that the files hold."""
        self.schema: pa.Schema = pa.schema([*in_files, *self.partitions.fields])
        """These, and then those of the folders."""

    @property
    def is_far(self) -> bool:
        """Whether it lies behind a network."""
        return isinstance(self.source, FarSource)

    def partition_of(self, file: int) -> dict[str, pa.Scalar]:
        """The values that a file's folders are named after."""
        values = self.partitions.values[file]
        return {
            field.name: pa.scalar(value, field.type)
            for field, value in zip(self.partitions.fields, values, strict=True)
        }

    def estimated_nbytes(self, columns: Sequence[str]) -> Int64s:
        """By row group, about what the columns have as Arrow data.

        Columns of fixed width are counted by rows; what a footer says beyond is divided evenly among the others.
        """
        facts = self.facts
        files = np.repeat(np.arange(len(facts)), np.diff(facts.group_starts))
        ids = facts.schema_ids[files]
        nbytes = np.zeros(len(facts.group_rows), np.int64)
        wanted = set(columns)
        for k, schema in enumerate(self.file_schemas):
            widths = {field.name: fixed_width(field.type) for field in schema}
            fixed = sum(width or 0 for width in widths.values())
            loose = [name for name, width in widths.items() if width is None]
            mine = ids == k
            rest = np.maximum(facts.group_nbytes[mine] - fixed * facts.group_rows[mine], 0)
            rest = np.maximum(rest, 8 * len(loose) * facts.group_rows[mine])
            read = sum(width or 0 for name, width in widths.items() if name in wanted)
            share = sum(name in wanted for name in loose)
            nbytes[mine] = read * facts.group_rows[mine] + (rest * share // max(len(loose), 1))
        nbytes += 8 * sum(field.name in wanted for field in self.partitions.fields) * facts.group_rows
        return nbytes


class ParquetDataset(StoredDataset):
    """What is read of a table, with units as shards: order, cache and loader take it as they take shards.

    Args:
        table: to read.
        columns: that are read, in order; those that only the filter needs are not among them.
        expression: rows that stay; None: all.
        identity: of whatever else makes other rows of them.
        units: of these columns; planned when None.
        counts: (units,) rows that the filter leaves; needed where there is one.
    """

    def __init__(
        self,
        table: ParquetTable,
        *,
        columns: Sequence[str],
        expression: pc.Expression | None = None,
        identity: bytes = b"",
        units: Units | None = None,
        counts: Int64s | None = None,
    ) -> None:
        self.table = table
        self.columns = tuple(columns)
        self.expression = expression
        self.units = plan_table_units(table, columns) if units is None else units
        rows = self.units.rows if counts is None else counts
        entries = self._entries(rows, self._identity(identity))
        index = encode_index(entries)
        decoded = ShardIndex.decode(memoryview(index), table.name)
        manifest = Manifest(
            schema=_NO_COLUMNS,
            fingerprint=fingerprint_of(_NO_COLUMNS, decoded.rows, decoded.checksums),
            rows=int(decoded.rows.sum()),
            shards=len(decoded.rows),
            nbytes=int(decoded.nbytes.sum()),
            parent=None,
            writer={"format": UNIT_WRITER},
            index=FileEntry(name=INDEX_NAME, nbytes=len(index), checksum=xxhash.xxh3_128_hexdigest(memoryview(index))),
        )
        super().__init__(_IndexInMemory(table.name, index), manifest, decoded)

    def _identity(self, more: bytes) -> bytes:
        chosen = [self.table.schema.field(name) for name in self.columns]
        said = "\n".join(f"{field.name!r} {field.type}" for field in chosen)
        filtered = b"" if self.expression is None else filter_identity(self.expression)
        return identity_of(_VERSION, said.encode(), filtered, more)

    def _entries(self, rows: Int64s, identity: bytes) -> list[ShardEntry]:
        facts, units = self.table.facts, self.units
        of_files = [
            identity_of(identity, path.encode("utf-8", "surrogateescape"), nbytes.to_bytes(8, "little"), checksum)
            for path, nbytes, checksum in zip(facts.paths, facts.nbytes.tolist(), facts.checksums, strict=True)
        ]
        whole = units.rows.tolist()
        entries = []
        for k, (file, first, end, begin, stop, nbytes) in enumerate(
            zip(
                units.files.tolist(),
                units.first_groups.tolist(),
                units.end_groups.tolist(),
                units.begins.tolist(),
                units.ends.tolist(),
                units.nbytes.tolist(),
                strict=True,
            )
        ):
            kept = int(rows[k])
            entries.append(
                ShardEntry(
                    name=f"unit-{k:012d}",
                    rows=kept,
                    nbytes=max(1, nbytes * kept // max(1, whole[k])),
                    footer_nbytes=1,
                    footer_checksum=0,
                    checksum=xxhash.xxh3_128_digest(of_files[file] + b"%d %d %d %d" % (first, end, begin, stop)),
                )
            )
        return entries

    def unit_file(self, unit: int) -> str:
        """The path of the file that a unit lies in."""
        return self.table.facts.paths[int(self.units.files[unit])]

    def where(self, unit: int) -> str:
        """What messages call a unit: file and row groups."""
        units = self.units
        first, end = int(units.first_groups[unit]), int(units.end_groups[unit])
        groups = f"row group {first}" if end == first + 1 else f"row groups {first} to {end - 1}"
        return f"{self.unit_file(unit)} of {self.name}, {groups}"

    def open_file(self, shard: int, source: Source | None = None) -> SourceFile:
        """Units are made of files by `UnitReader`, never opened as shards."""
        raise SourceError(f"{self.where(shard)} is Parquet, and was to be opened as a shard of Arrow")

    def __repr__(self) -> str:
        return f"ParquetDataset({self.name!r}, rows={self.rows}, units={self.num_shards})"


def plan_table_units(table: ParquetTable, columns: Sequence[str]) -> Units:
    """The units of some columns of a table."""
    facts = table.facts
    return plan_units(facts.group_starts, facts.group_rows, table.estimated_nbytes(columns))


@dataclass(slots=True)
class _IndexInMemory:
    """Where the index of a table's units lies: nowhere but here. Conforms to `Source`."""

    name: str
    index: Any

    def open(self, path: str) -> SourceFile:
        """See `Source.open`: the index, whatever it is called."""
        return _BytesFile(memoryview(self.index))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, bytes(self.index))


class _BytesFile:
    """Bytes in memory. Conforms to `SourceFile`."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self.nbytes = len(content)

    def read(self, offset: int, nbytes: int, memory: object = None) -> memoryview:
        """See `SourceFile.read`."""
        return self._content[offset : offset + nbytes]

    def fileno(self) -> int:
        """See `SourceFile.fileno`."""
        return -1

    def close(self) -> None:
        """Nothing is held."""
