"""Reads the units of a table: columns of row groups, in the table's schema, and of them the rows that a filter leaves.

One unit in the calling thread; how many at a time is the caller's affair. A file that is not the one whose footer was
read at opening is refused by name.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from forebay.errors import ForebayError, ShardCorruptError, SourceError
from forebay.sharding.far import FarFile, FarSource, bring_near
from forebay.sharding.parquet_dataset import ParquetDataset, ParquetTable
from forebay.sharding.parquet_filter import filter_columns, matching
from forebay.sharding.parquet_footer import THRIFT_LIMIT, Footer, parse_footer, read_footer, read_reasons
from forebay.sharding.parquet_schema import leaves_of
from forebay.sharding.source import Source, SourceFile

__all__ = ["FileReader", "UnitReader"]

KEPT_FOOTERS = 64
"""Parsed footers that are kept; one of 3,000 columns takes some MB and 20 ms to parse."""
STREAM_NBYTES = 1 << 20
"""What is read at a time of each column of a row group that is larger than a unit."""
PIECE_ROWS = 1 << 16
HOLE_NBYTES = 8192
"""Column chunks with at most so much between them are read as one: pyarrow joins them likewise."""


class FileReader:
    """Row groups of the files of a table. Thread-safe.

    Args:
        table: whose files are read.
        open_file: opens one, where it is not the table's own source that does.
    """

    def __init__(self, table: ParquetTable, open_file: Callable[[str, int], SourceFile] | None = None) -> None:
        self._table = table
        self._open = open_file
        self._footers: OrderedDict[int, tuple[pq.FileMetaData, pa.Schema, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.read_nbytes = 0
        """Bytes that were read of the files."""

    def open(self, file: int) -> tuple[SourceFile, pq.FileMetaData, pa.Schema, int]:
        """Open a file and make sure that it is the one of which the table knows.

        Returns:
            It, what its footer says, the schema, and the footer's length.

        Raises:
            ShardCorruptError: it was replaced or cut short.
            SourceError: it is gone, or cannot be read.
        """
        facts, name = self._table.facts, self._name(file)
        opened = open_sized(self._table.source, facts.paths[file], int(facts.nbytes[file]), self._open)
        try:
            self._check_status(opened, file)
            with self._lock:
                known = self._footers.get(file)
                if known is not None:
                    self._footers.move_to_end(file)
            if known is None:
                footer = read_footer(opened, name)
                self.count(len(footer.content))
                known = self._parsed(footer, file)
                with self._lock:
                    self._footers[file] = known
                    while len(self._footers) > KEPT_FOOTERS:
                        self._footers.popitem(last=False)
        except BaseException:
            opened.close()
            raise
        return opened, *known

    def _parsed(self, footer: Footer, file: int) -> tuple[pq.FileMetaData, pa.Schema, int]:
        if footer.checksum != self._table.facts.checksums[file]:
            raise _replaced(self._name(file), "its footer is another")
        return *parse_footer(footer, self._name(file)), len(footer.content)

    def footer(self, file: int) -> Footer:
        """The footer of a file, as bytes."""
        opened = self.open(file)[0]
        try:
            return read_footer(opened, self._name(file))
        finally:
            opened.close()

    def _name(self, file: int) -> str:
        return f"{self._table.facts.paths[file]} of {self._table.name}"

    def _check_status(self, opened: SourceFile, file: int) -> None:
        facts = self._table.facts
        if opened.nbytes != facts.nbytes[file]:
            raise _replaced(self._name(file), f"it has {opened.nbytes} bytes, and had {int(facts.nbytes[file])}")
        fd, known = opened.fileno(), int(facts.mtimes_ns[file])
        if fd >= 0 and known and (found := os.fstat(fd).st_mtime_ns) != known:
            raise _replaced(self._name(file), f"it was written {(found - known) / 1e9:+.3f} s after that")

    def count(self, nbytes: int) -> None:
        """Add to the bytes that were read."""
        with self._lock:
            self.read_nbytes += nbytes

    def pieces(
        self, file: int, groups: Sequence[int], columns: Sequence[str], *, stream: bool
    ) -> Iterator[pa.Table | pa.RecordBatch]:
        """Columns of row groups: as one table, or in pieces of some rows, with little memory.

        Columns that the file does not have, and those of its folders, are added by `conform`.

        Raises:
            ShardCorruptError: they cannot be decoded; names file, row groups and column.
            SourceError: as `open`.
        """
        opened, metadata, schema, footer_nbytes = self.open(file)
        leaves = leaves_of(schema)
        mine = [name for name in schema.names if name in set(columns)]
        chosen = [leaf for name in mine for leaf in leaves[schema.get_field_index(name)]]
        where = f"{self._name(file)}, {_groups(groups)}"
        if sum(map(len, leaves)) != metadata.num_columns:
            opened.close()
            raise ShardCorruptError(
                f"{where}: its {metadata.num_columns} leaf columns do not make up the {len(schema)} columns of its "
                f"schema; write the file anew",
                path=self._name(file),
            )
        view = _ArrowFile(opened, self.count)
        try:
            if isinstance(opened, FarFile):
                near = _near_ranges(metadata, footer_nbytes, groups, chosen)
                view.bring([(begin, end) for begin, end in near if end <= opened.nbytes])
            yield from self._decoded(view, metadata, list(groups), chosen, stream=stream)
        except ForebayError:
            raise
        except read_reasons as error:
            culprit = self._culprit(
                view, metadata, list(groups), [(n, leaves[schema.get_field_index(n)]) for n in mine]
            )
            raise ShardCorruptError(
                f"{where}{culprit}: {' '.join(str(error).split())[:500]}; copy the file again from where it came, or "
                f"leave the column out by columns=",
                path=self._name(file),
                groups=list(groups),
            ) from error
        finally:
            view.close()
            opened.close()

    def _decoded(
        self, view: _ArrowFile, metadata: pq.FileMetaData, groups: list[int], leaves: list[int], *, stream: bool
    ) -> Iterator[pa.Table | pa.RecordBatch]:
        limits: dict[str, Any] = {
            "thrift_string_size_limit": THRIFT_LIMIT,
            "thrift_container_size_limit": THRIFT_LIMIT,
            "page_checksum_verification": True,  # where the writer has left checksums
        }
        source = pa.PythonFile(view, mode="r")
        if stream:
            parquet = pq.ParquetFile(source, metadata=metadata, buffer_size=STREAM_NBYTES, pre_buffer=False, **limits)
            yield from parquet.reader.iter_batches(
                PIECE_ROWS, row_groups=groups, column_indices=leaves, use_threads=False
            )
        else:
            parquet = pq.ParquetFile(source, metadata=metadata, pre_buffer=True, **limits)
            yield parquet.reader.read_row_groups(groups, column_indices=leaves, use_threads=False)

    def _culprit(
        self, view: _ArrowFile, metadata: pq.FileMetaData, groups: list[int], columns: list[tuple[str, range]]
    ) -> str:
        """Which column it is that cannot be decoded."""
        for name, leaves in columns:
            try:
                for _ in self._decoded(view, metadata, groups, list(leaves), stream=False):
                    pass
            except read_reasons:
                return f", column {name!r}"
        return ""

    def conform(self, table: pa.Table, file: int, columns: Sequence[str]) -> pa.Table:
        """Columns in the table's types, in order; nulls where the file has none, and the folders' values.

        Raises:
            ShardCorruptError: values that do not fit the promoted type.
        """
        rows, schema = table.num_rows, self._table.schema
        partition = self._table.partition_of(file)
        arrays = []
        for name in columns:
            field = schema.field(name)
            if name in partition:
                arrays.append(pa.chunked_array([pa.repeat(partition[name], rows)], field.type))
            elif name not in table.schema.names:
                arrays.append(pa.chunked_array([pa.nulls(rows, field.type)]))
            elif (column := table.column(name)).type == field.type:
                arrays.append(column)
            else:
                try:
                    arrays.append(column.cast(field.type))
                except read_reasons as error:
                    raise ShardCorruptError(
                        f"{self._name(file)}, column {name!r}: {column.type} cannot be promoted to {field.type}: "
                        f"{' '.join(str(error).split())}; convert the file, or leave it out",
                        path=self._name(file),
                        column=name,
                    ) from error
        return pa.Table.from_arrays(arrays, schema=pa.schema([schema.field(name) for name in columns]))


class UnitReader:
    """The units of a data set, in the calling thread. Thread-safe.

    Args:
        data: whose units are read.
        open_file: as of `FileReader`.
    """

    def __init__(self, data: ParquetDataset, open_file: Callable[[str, int], SourceFile] | None = None) -> None:
        self._data = data
        self._files = FileReader(data.table, open_file)
        self._columns = list(data.columns)
        if data.expression is not None:
            more = filter_columns(data.expression, data.table.schema, data.name)
            self._columns += [name for name in more if name not in data.columns]

    @property
    def read_nbytes(self) -> int:
        """Bytes that were read of the files."""
        return self._files.read_nbytes

    def read(self, unit: int) -> pa.Table:
        """One unit, of the data set's columns.

        Raises:
            ShardCorruptError, SourceError: as `FileReader.pieces`; or other rows are left than were counted.
        """
        with contextlib.closing(self.read_parts(unit)) as parts:
            for part, table in parts:
                if part == unit:
                    return table
        raise AssertionError(f"unit {unit} is one of its own siblings")

    def read_parts(self, unit: int) -> Generator[tuple[int, pa.Table]]:
        """A unit and those of the same row group, in order: decoding one of them passes over those before it."""
        data, units = self._data, self._data.units
        siblings = units.siblings(unit)
        file = int(units.files[unit])
        groups = range(int(units.first_groups[unit]), int(units.end_groups[unit]))
        if len(siblings) == 1:
            (table,) = self._files.pieces(file, groups, self._columns, stream=False)
            yield unit, self._finished(table, unit)
            return
        held: list[pa.RecordBatch] = []
        have = 0
        part = siblings.start
        for piece in self._files.pieces(file, groups, self._columns, stream=True):
            while piece.num_rows:
                wanted = int(units.ends[part] - units.begins[part]) - have
                head, piece = piece.slice(0, wanted), piece.slice(wanted)
                held.append(head)
                have += head.num_rows
                if have == units.ends[part] - units.begins[part]:
                    table = pa.Table.from_batches(held)
                    held, have = [], 0
                    yield part, self._finished(table, part)
                    part += 1
                    if part == siblings.stop:
                        return
        raise ShardCorruptError(f"{data.where(unit)} has fewer rows than its footer claims; copy the file again")

    def _finished(self, table: pa.Table, unit: int) -> pa.Table:
        data = self._data
        if table.num_rows != data.units.rows[unit]:
            raise ShardCorruptError(
                f"{data.where(unit)} has {table.num_rows} rows, and its footer claims {int(data.units.rows[unit])}; "
                f"copy the file again from where it came"
            )
        table = self._files.conform(table, int(data.units.files[unit]), self._columns)
        if data.expression is not None:
            table = matching(table, data.expression).select(list(data.columns))
        if table.num_rows != data.shard_rows[unit]:
            raise ShardCorruptError(
                f"{data.where(unit)}: the filter leaves {table.num_rows} rows, and left {int(data.shard_rows[unit])} "
                f"when they were counted: the file was replaced; open the data set anew"
            )
        return table


class _ArrowFile(io.RawIOBase):
    """A `SourceFile` as pyarrow reads one: by `pread`, or whatever the source does; every byte is counted."""

    def __init__(self, file: SourceFile, count: Callable[[int], None]) -> None:
        self._file = file
        self._count = count
        self._place = 0
        self._near: list[tuple[int, memoryview]] = []

    def bring(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Bring ranges near all at once, by the calling thread: pyarrow would ask for one after the other."""
        bring_near((self._file, begin, end - begin) for begin, end in ranges)
        self._near = [(begin, self._file.read(begin, end - begin)) for begin, end in ranges]

    def read(self, nbytes: int = -1, /) -> Any:
        """Bytes from the current place on, fewer at the end."""
        left = max(self._file.nbytes - self._place, 0)
        wanted = left if nbytes is None or nbytes < 0 else min(nbytes, left)
        for begin, view in self._near:
            if begin <= self._place and self._place + wanted <= begin + len(view):
                data: Any = view[self._place - begin : self._place - begin + wanted]
                self._place += wanted
                self._count(wanted)
                return data
        fd = self._file.fileno()
        data = os.pread(fd, wanted, self._place) if fd >= 0 else self._file.read(self._place, wanted)
        if len(data) != wanted:
            data = self._file.read(self._place, wanted)  # which raises, and names the file
        self._place += wanted
        self._count(wanted)
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """As of files."""
        self._place = offset + (0, self._place, self._file.nbytes)[whence]
        return self._place

    def tell(self) -> int:
        """The current place."""
        return self._place

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True


def _near_ranges(
    metadata: pq.FileMetaData, footer_nbytes: int, groups: Sequence[int], leaves: Sequence[int]
) -> list[tuple[int, int]]:
    """Where the column chunks lie that will be read; those that nearly touch are one range.

    Nothing where the footer is signed: then some columns may be encrypted, and pyarrow ends the process that asks it
    where such a column lies.
    """
    if metadata.serialized_size != footer_nbytes - 8:
        return []
    chunks: list[tuple[int, int]] = []
    for group in groups:
        of_group = metadata.row_group(group)
        for leaf in leaves:
            chunk = of_group.column(leaf)
            places = [chunk.data_page_offset] + ([chunk.dictionary_page_offset] if chunk.has_dictionary_page else [])
            begin = min(place for place in places if place)
            chunks.append((begin, begin + max(chunk.total_compressed_size, 0)))
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(chunks):
        if merged and begin - merged[-1][1] <= HOLE_NBYTES:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        elif end > begin:
            merged.append((begin, end))
    return merged


def open_sized(
    source: Source, path: str, nbytes: int, open_file: Callable[[str, int], SourceFile] | None = None
) -> SourceFile:
    """Open a file whose size is known: of a far source, without a request."""
    if open_file is not None:
        return open_file(path, nbytes)
    return source.open_sized(path, nbytes) if isinstance(source, FarSource) else source.open(path)


def _groups(groups: Sequence[int]) -> str:
    return f"row group {groups[0]}" if len(groups) == 1 else f"row groups {groups[0]} to {groups[-1]}"


def _replaced(name: str, what: str) -> SourceError:
    return ShardCorruptError(
        f"{name} was replaced after the data set was opened: {what}; open the data set anew, and leave files alone "
        f"while they are read",
        path=name,
    )
