"""`forebay shard` of a table in Parquet: its rows as samples, or whatever a function of whole units makes of them.

Reading and the function run in threads, a few units ahead; rows are stored in their order by the calling thread.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from forebay.cache import BucketDestination, is_url, open_place
from forebay.cli.console import console, counted, progress_bar
from forebay.cli.inspect import human_size
from forebay.cli.table_pass import SchemaChange, done_in_order, open_for_pass
from forebay.errors import ConfigError, SchemaError
from forebay.sharding import (
    ParquetDataset,
    ParquetTable,
    ShardWriter,
    UnitReader,
    declare_columns,
    samples_of,
)

__all__ = ["print_table_report", "write_table"]

Transform = Callable[[pa.Table, int, str], pa.Table]


@dataclass(frozen=True, slots=True)
class _Planned:
    """What is read of a table, and what is made of it."""

    data: ParquetDataset
    transform: Transform | None
    schema: pa.Schema
    """Of what is stored."""


def write_table(
    src: str,
    dst: Path | str,
    *,
    columns: Sequence[str] | None = None,
    transform: str | None = None,
    schema_change: SchemaChange = "error",
    shard_nbytes: int = 64 << 20,
    resume: bool = False,
    workers: int | None = None,
) -> dict[str, Any]:
    """Store the rows of a table as a data set, with a progress bar; return what `forebay shard --json` prints.

    Args:
        src: a Parquet file, a folder or tree of them, a glob or a URL.
        dst: folder or URL of the data set.
        columns: that are read; None reads all.
        transform: "package.module:function" of a whole unit of rows, which may drop and add rows.
        schema_change: what may differ between files.
        shard_nbytes: size at which a shard is closed.
        resume: go on with a write that was stopped. With a transform, all units are read and transformed again, to
            know which rows are stored.
        workers: threads that read; None for the cores that this one may use.

    Raises:
        ConfigError: the destination is not empty or within the table, there are no rows, or the function cannot be
            imported.
        SchemaError: a column that shards have no kind for, or a null.
        SampleError: the function failed.
        SourceError, ShardCorruptError: a file cannot be read, or the destination not be written.
    """
    table = open_for_pass(src, schema_change)
    if os.path.isdir(src) and not is_url(dst) and Path(dst).resolve().is_relative_to(Path(src).resolve()):
        raise ConfigError(f"{dst} lies within {src}, and its shards would be taken for the table; write elsewhere")
    plan = _plan(table, columns, transform)
    specs = declare_columns(plan.schema, table.name)
    started = time.monotonic()
    with ShardWriter(
        BucketDestination(dst) if isinstance(dst, str) and is_url(dst) else dst,
        specs,
        shard_nbytes=shard_nbytes,
        batch_nbytes=min(1 << 20, shard_nbytes),
        settings={"table": plan.data.fingerprint, "table_transform": transform or ""},
        resume=resume,
    ) as writer:
        done = writer.rows_done
        written = _write(plan, writer, specs, workers or len(os.sched_getaffinity(0)))
    seconds = time.monotonic() - started
    stored = open_place(dst)
    return {
        "path": stored.name,
        "fingerprint": stored.fingerprint,
        "rows": stored.rows,
        "shards": stored.num_shards,
        "nbytes": stored.manifest.nbytes,
        "columns": specs,
        "table": {"path": table.name, "fingerprint": plan.data.fingerprint, "rows": plan.data.rows},
        "resumed_rows": done,
        "seconds": round(seconds, 3),
        "rows_per_s": round(written / seconds, 1),
    }


def print_table_report(report: dict[str, Any]) -> None:
    """Print in sentences what `--json` gives as an object."""
    table = report["table"]
    of = "" if table["rows"] == report["rows"] else f" of {table['rows']:,}"
    console.print(
        f"[green]{counted(report['rows'], 'row')}[/]{of}: {counted(report['shards'], 'shard')}, "
        f"{human_size(report['nbytes'])}, {report['seconds']:,.1f} s ({report['rows_per_s']:,.0f} rows/s)"
    )
    console.print(f"{escape(report['path'])}: fingerprint {report['fingerprint']}", soft_wrap=True)
    said = ", ".join(f"{name} {spec}" for name, spec in report["columns"].items())
    console.print(escape(said), soft_wrap=True)


def _plan(table: ParquetTable, columns: Sequence[str] | None, transform: str | None) -> _Planned:
    names = list(table.schema.names if columns is None else columns)
    for name in names:
        if name not in table.schema.names:
            raise SchemaError(
                f"there is no column {name!r} in {table.name}; there are {', '.join(table.schema.names[:20])}",
                column=name,
            )
    given = pa.schema([table.schema.field(name) for name in names])
    if transform is None:
        return _Planned(ParquetDataset(table, columns=names), None, given)
    from forebay.loader.tables_function import UnitFunction  # imports torch

    function = UnitFunction(_import(transform), keeps_rows=False)
    made = function.schema_of(given, table.name)

    def make(rows: pa.Table, unit: int, where: str) -> pa.Table:
        return function.make(rows, unit, where, made)

    return _Planned(ParquetDataset(table, columns=names, identity=function.identity), make, made)


def _import(path: str) -> Callable[..., Any]:
    """What "package.module:function" names, of the current folder too.

    Raises:
        ConfigError: there is no such module or name.
    """
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    module, _, name = path.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f'--table-transform {path!r} cannot be imported: {error}; give "package.module:function", of a package '
            f"that is installed or lies in the current folder"
        ) from error
    return found


def _write(plan: _Planned, writer: ShardWriter, specs: dict[str, str], threads: int) -> int:
    """Store all rows that are not stored yet; returns their number."""
    data, stored = plan.data, writer.rows_done
    reader = UnitReader(data)
    starts = np.concatenate(([0], np.cumsum(data.shard_rows))).tolist()
    firsts = [unit for unit in range(data.num_shards) if data.units.siblings(unit).start == unit]
    if plan.transform is None:  # a row of the table is a sample: whole row groups need not be read again
        firsts = [unit for unit in firsts if starts[data.units.siblings(unit).stop] > stored]
    before = starts[firsts[0]] if firsts else starts[-1]

    def read(first: int) -> Iterator[tuple[int, int, pa.Table]]:
        parts = _parts(plan, reader, first)
        return iter(list(parts)) if len(data.units.siblings(first)) == 1 else parts

    bars = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"), TimeRemainingColumn())
    written, skip = 0, stored - (before if plan.transform is None else 0)
    with progress_bar("sharding", *bars) as progress, closing(done_in_order(read, firsts, threads)) as groups:
        task = progress.add_task("", total=data.rows, completed=before, speed="")
        started = time.monotonic()
        for unit, rows, made in itertools.chain.from_iterable(groups):
            new = made.slice(min(skip, made.num_rows))
            skip -= made.num_rows - new.num_rows
            for sample in samples_of(new, specs, data.where(unit)):
                writer.write(sample)
            written += new.num_rows
            speed = f"{written / max(time.monotonic() - started, 1e-3):,.0f} rows/s"
            progress.update(task, advance=rows, speed=speed)
    if not stored + written:
        raise ConfigError(f"of {counted(data.rows, 'row')} of {data.name} none is left to be stored")
    return written


def _parts(plan: _Planned, reader: UnitReader, first: int) -> Iterator[tuple[int, int, pa.Table]]:
    """Units of one row group: each one's number, its rows in the file, and what is stored of them."""
    for unit, rows in reader.read_parts(first):
        made = rows if plan.transform is None else plan.transform(rows, unit, plan.data.where(unit))
        yield unit, rows.num_rows, made
