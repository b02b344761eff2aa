"""Opens a table: footers read once, many at a time, by one process of the machine, and kept in the cache.

Likewise the rows that a filter leaves are counted once. What is read of the table is chosen in between, by the loader.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.cache.config import CacheConfig
from forebay.cache.folders import CacheFolders
from forebay.cache.remote_config import RemoteConfig
from forebay.cache.table_notes import TableNotes
from forebay.cache.table_places import Place, TableFile, TablePlace, find_files
from forebay.errors import ConfigError, ManifestError
from forebay.sharding import (
    FarSource,
    FileFacts,
    FileReader,
    FolderSource,
    ParquetTable,
    SchemaChange,
    Source,
    TableFacts,
    facts_of,
    filter_columns,
    filter_identity,
    groups_left,
    identity_of,
    plan_table_units,
)

__all__ = ["count_rows", "open_notes", "open_table"]

Int64s = npt.NDArray[np.int64]
Result = TypeVar("Result")
NEAR_THREADS, FAR_THREADS = 4, 32
PAUSE_S, LONGEST_WAIT_S = 0.02, 60.0
"""How often to look whether another process has read the footers, and how long until this one reads them as well."""


def open_notes(config: CacheConfig | None) -> TableNotes | None:
    """Where a cache keeps notes about tables; None where there is no cache.

    Raises:
        CacheError: its folder cannot hold a cache.
    """
    if config is None:
        return None
    folder = CacheFolders(config).folders[0]
    return TableNotes(folder.path, folder.budget)


def open_table(
    place: Place | TablePlace,
    notes: TableNotes | None,
    *,
    schema_change: SchemaChange = "error",
    remote: RemoteConfig | None = None,
) -> ParquetTable:
    """Open a table.

    Args:
        place: see `find_files`.
        notes: where facts of footers are kept.
        schema_change: what may differ between files.
        remote: how a URL is read.

    Raises:
        SourceError: there is no such place, or a file cannot be read.
        ShardCorruptError: a file is no Parquet file, or damaged; names it.
        SchemaError: the files' columns do not go together.
    """
    if schema_change not in ("error", "promote"):
        raise ConfigError(f'schema_change={schema_change!r}; give "error" or "promote"')
    found = find_files(place, remote)
    if notes is None:
        return ParquetTable(found.source, _read_facts(found, None), schema_change)
    root = str(found.source.root.absolute()) if isinstance(found.source, FolderSource) else found.source.name
    paths = b"\0".join(file.path.encode("utf-8", "surrogateescape") for file in found.files)
    key = identity_of(b"footers 1", root.encode("utf-8", "surrogateescape"), paths).hex()
    known: TableFacts | None = None

    def look() -> TableFacts | None:
        nonlocal known
        known = _known_facts(notes, key)
        return known if known is not None and _same(known, found.files) else None

    def read() -> TableFacts:
        facts = _read_facts(found, known)
        notes.put(key, facts.to_arrow())
        return facts

    return ParquetTable(found.source, _once(notes, key, look, read), schema_change)


def _once(notes: TableNotes, key: str, look: Callable[[], Result | None], make: Callable[[], Result]) -> Result:
    """What is there, or is made by one process while others wait for it, but not for ever."""
    turn, deadline = notes.turn(key), time.monotonic() + LONGEST_WAIT_S
    pause = threading.Event()
    while (there := look()) is None:
        if turn.take() or time.monotonic() > deadline:
            try:
                return make() if (there := look()) is None else there
            finally:
                turn.give_up()
        pause.wait(PAUSE_S)
    return there


def _known_facts(notes: TableNotes, key: str) -> TableFacts | None:
    batch = notes.get(key)
    if batch is None:
        return None
    try:
        return TableFacts.from_arrow(batch)
    except ManifestError:
        return None


def _same(facts: TableFacts, files: Sequence[TableFile]) -> bool:
    return (
        facts.paths == tuple(file.path for file in files)
        and facts.nbytes.tolist() == [file.nbytes for file in files]
        and facts.mtimes_ns.tolist() == [file.mtime_ns for file in files]
    )


def _read_facts(place: TablePlace, known: TableFacts | None) -> TableFacts:
    """Read the footers of all files but those that are known, and have not changed."""
    source = place.source
    before = {} if known is None else {path: k for k, path in enumerate(known.paths)}

    def read(file: TableFile) -> FileFacts:
        k = before.get(file.path)
        if k is not None and known is not None:
            facts = known.file(k)
            if (facts.nbytes, facts.mtime_ns) == (file.nbytes, file.mtime_ns):
                return facts
        return _read_one(source, file)

    facts = _side_by_side(source, read, place.files)
    return TableFacts.of([file.path for file in place.files], facts)


def _read_one(source: Source, file: TableFile) -> FileFacts:
    opened = source.open_sized(file.path, file.nbytes) if isinstance(source, FarSource) else source.open(file.path)
    try:
        fd = opened.fileno()
        mtime_ns = os.fstat(fd).st_mtime_ns if fd >= 0 else 0
        return facts_of(opened, f"{file.path} of {source.name}", mtime_ns)
    finally:
        opened.close()


Given = TypeVar("Given")


def _side_by_side(source: Source, work: Callable[[Given], Result], given: Sequence[Given]) -> list[Result]:
    """The results in order; the first error in order is raised, and what has not begun is left."""
    threads = min(len(given), FAR_THREADS if isinstance(source, FarSource) else NEAR_THREADS)
    if threads < 2:
        return [work(each) for each in given]
    with ThreadPoolExecutor(threads, "forebay-footers") as pool:
        try:
            return list(pool.map(work, given))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def count_rows(
    table: ParquetTable, columns: Sequence[str], expression: pc.Expression, notes: TableNotes | None
) -> Int64s:
    """How many rows of each unit a filter leaves: by statistics where they say none, else by the filter's columns.

    Args:
        table: to look through.
        columns: those that will be read; they fix the units.
        expression: the filter.
        notes: where counts are kept.

    Raises:
        SchemaError: the filter does not fit the columns.
        ShardCorruptError, SourceError: a file cannot be read.
    """
    needed = filter_columns(expression, table.schema, table.name)
    if notes is None:
        return _count(table, columns, expression, needed)
    facts = table.facts
    files = [
        identity_of(path.encode("utf-8", "surrogateescape"), checksum)
        for path, checksum in zip(facts.paths, facts.checksums, strict=True)
    ]
    said = "\n".join(f"{name!r} {table.schema.field(name).type}" for name in columns)
    key = identity_of(b"counts 1", said.encode(), filter_identity(expression), *files).hex()
    units = plan_table_units(table, columns)

    def look() -> Int64s | None:
        batch = notes.get(key)
        if batch is None or batch.num_columns != 1 or batch.column(0).type != pa.int64():
            return None
        counts: Int64s = batch.column(0).to_numpy()
        held = len(counts) == len(units) and (not len(counts) or bool(((counts >= 0) & (counts <= units.rows)).all()))
        return counts if held else None

    def count() -> Int64s:
        counts = _count(table, columns, expression, needed)
        notes.put(key, pa.RecordBatch.from_arrays([pa.array(counts)], names=["rows"]))
        return counts

    return _once(notes, key, look, count)


def _count(table: ParquetTable, columns: Sequence[str], expression: pc.Expression, needed: list[str]) -> Int64s:
    units = plan_table_units(table, columns)
    reader = FileReader(table)
    counts = np.zeros(len(units), np.int64)
    bounds = np.searchsorted(units.files, np.arange(len(table.facts) + 1))

    def count(file: int) -> None:
        mine = range(int(bounds[file]), int(bounds[file + 1]))
        if not mine:
            return
        footer = reader.footer(file)
        left = groups_left(footer.content, expression, table.partition_of(file), table.schema)
        starts = np.concatenate(([0], np.cumsum(table.facts.file(file).group_rows)))
        places = []  # of each unit's rows within the file
        for unit in mine:
            begin = int(starts[units.first_groups[unit]] + units.begins[unit])
            places.append((begin, begin + int(units.ends[unit] - units.begins[unit])))
        ends = np.array([end for _, end in places], np.int64)
        for group, (begin, end) in enumerate(zip(starts.tolist(), starts[1:].tolist(), strict=False)):
            if begin == end or (left is not None and group not in left):
                continue
            row = begin
            for piece in reader.pieces(file, [group], needed, stream=True):
                rows = piece if isinstance(piece, pa.Table) else pa.Table.from_batches([piece])
                named = reader.conform(rows, file, needed)
                kept = np.zeros(rows.num_rows, np.bool_)
                numbered = named.append_column("", pa.array(np.arange(rows.num_rows)))
                kept[numbered.filter(expression).column(named.num_columns).to_numpy()] = True
                owners = np.searchsorted(ends, row + np.flatnonzero(kept), side="right")
                np.add.at(counts, mine.start + owners, 1)
                row += rows.num_rows

    _side_by_side(table.source, count, range(len(table.facts)))
    return counts
