"""One pass over a table's rows by a few threads, with a bar: what `forebay stats`, `vocab` and `shard` do.

It reads each row group once and holds a few units at a time; what is done with them is the command's.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Literal, Protocol, Self, TypeVar

import pyarrow as pa
from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn

from forebay.cache import open_table
from forebay.cli.console import progress_bar
from forebay.sharding import ParquetDataset, ParquetTable, UnitReader

__all__ = ["SchemaChange", "Taker", "done_in_order", "open_for_pass", "take_all"]

SchemaChange = Literal["error", "promote"]
TakerT = TypeVar("TakerT", bound="Taker")
Result = TypeVar("Result")


def open_for_pass(path: str, schema_change: SchemaChange) -> ParquetTable:
    """Open a table: a file, folder, tree, glob or URL.

    Raises:
        ForebayError: as `open_table`.
    """
    return open_table(path, None, schema_change=schema_change)


class Taker(Protocol):
    """What looks at tables: parts of one look at parts of the rows, and are merged."""

    def empty(self) -> Self:
        """Another one that took nothing yet."""

    def update(self, table: pa.Table) -> None:
        """Take a table's rows."""

    def merge(self, other: Self) -> None:
        """Take what another one took."""


def take_all(title: str, table: ParquetTable, columns: Sequence[str], taker: TakerT) -> int:
    """Let `taker` take all rows: each row group by itself, merged in their order, whatever the number of threads.

    Args:
        title: of the bar.
        table: whose rows are read.
        columns: that are read.
        taker: its copies are used in threads.

    Returns:
        The number of rows.
    """
    data = ParquetDataset(table, columns=columns)
    reader = UnitReader(data)
    firsts = [unit for unit in range(data.num_shards) if data.units.siblings(unit).start == unit]
    threads = len(os.sched_getaffinity(0))

    def read(first: int) -> tuple[int, TakerT]:
        part, rows = taker.empty(), 0
        for _, rows_of_part in reader.read_parts(first):
            part.update(rows_of_part)
            rows += rows_of_part.num_rows
        return rows, part

    bars = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with (
        progress_bar(title, *bars) as progress,
        closing(done_in_order(read, firsts if columns else (), threads)) as parts,
    ):
        task = progress.add_task("", total=data.rows)
        for rows, part in parts:
            taker.merge(part)
            progress.advance(task, rows)
    return int(table.facts.group_rows.sum())


def done_in_order(work: Callable[[int], Result], units: Iterable[int], threads: int) -> Generator[Result]:
    """What `work` gives of each unit, in their order, by some threads that are one unit ahead of the last result.

    Close it, to end the threads.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="forebay-pass") as pool:
        waiting: deque[Future[Result]] = deque()
        ahead = iter(units)
        try:
            while True:
                waiting += [pool.submit(work, unit) for unit in itertools.islice(ahead, threads + 1 - len(waiting))]
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
