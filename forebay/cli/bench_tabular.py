"""`forebay bench tabular`: epochs of a Parquet table, beside pyarrow in file order."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forebay.cache import parse_size
from forebay.cli.bench_tables import bench_table, machine_words, rounds_words, speed_cell, times_cell
from forebay.cli.console import console, error_console, print_json

__all__ = ["bench_tabular"]


def bench_tabular(
    rows: Annotated[int, typer.Option(min=1, help="Rows of the table, which is written for this.")] = 2_000_000,
    columns: Annotated[int, typer.Option(min=1, help="Its columns of float32; it has a label besides.")] = 20,
    files: Annotated[int, typer.Option(min=1, help="Its files.")] = 8,
    group_rows: Annotated[int, typer.Option(min=1, help="Rows of a row group.")] = 50_000,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows a batch.")] = 8192,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the loader.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Timed passes of each side, after one that warms up.")] = 5,
    open_files: Annotated[int, typer.Option(min=0, help="Small files of a tree that is opened; 0: none.")] = 10_000,
    stream: Annotated[
        str | None, typer.Option(help="Bytes that are streamed through a cache of a tenth, to watch the memory: 20GB.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where to put table and caches: several times its size; by default temporary.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Measure epochs of a table of random numbers, shuffled over the whole window, with and without the cache.

    The reference is pyarrow, which reads the files in their order and stacks the columns of each batch. All sides give
    (B, columns) float32 and (B,) int64, and take turns.
    """
    from forebay.benchmarks import StreamWork, TabularWork, measure_tabular  # imports torch

    nbytes = None if stream is None else parse_size(stream)
    work = TabularWork(
        rows=rows,
        columns=columns,
        files=files,
        group_rows=group_rows,
        batch_size=batch_size,
        threads=threads,
        opened_files=open_files,
        stream=None if nbytes is None else StreamWork(nbytes=nbytes, cache_nbytes=nbytes // 10),
    )
    with error_console.status("measuring") as status:
        report = measure_tabular(
            work, rounds=rounds, folder=folder, progress=lambda name: status.update(f"measuring: {name}")
        )
    values = report.to_dict()
    if json:
        print_json(values)
        return
    table = bench_table("read", "rows/s", "times pyarrow")
    for side in report.sides:
        table.add_row(side.name, speed_cell(side.rows_per_s), times_cell(side.over_reference))
    console.print(table)
    said = [
        f"{rows:,} rows of {columns} float32 and a label in {files} files; {rounds_words(report.sides[0].rows_per_s)}.",
        f"Hashes of one epoch over 1, 2 and 4 threads, cache cold and warm: {report.hashes}.",
        f"Later epochs converted {report.later_converted} units and read {report.later_source_nbytes:,} bytes.",
    ]
    if report.open_s is not None:
        said.append(f"{open_files:,} files opened in {report.open_s[0]:.2f} s, again in {report.open_s[1]:.2f} s.")
    if (memory := report.streamed) is not None:
        said.append(
            f"{memory.nbytes / 1e9:.1f} GB streamed: {memory.largest_nbytes / 1e9:.2f} GB resident at most, "
            f"{memory.early_nbytes / 1e9:.2f} early, {memory.late_nbytes / 1e9:.2f} late."
        )
    console.print(f"{' '.join(said)} {machine_words(values)}", style="dim")
