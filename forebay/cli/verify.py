"""`forebay verify`: every checksum of a data set."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from forebay.cli.console import console, error_console, print_json
from forebay.errors import ManifestError
from forebay.sharding import Problem, open_dataset, verify_dataset

__all__ = ["verify"]


def verify(
    path: Annotated[str, typer.Argument(help="Folder of a data set.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Read a data set whole and compare every checksum; name the shards and samples that are damaged.

    Exit code 1 when anything is. A damaged shard can be copied again by itself: shards are independent files.
    """
    rows, shards, nbytes = 0, 0, 0
    try:
        data = open_dataset(path)
    except ManifestError as error:
        problems = [Problem(shard=None, row=None, column=None, reason=str(error))]
    else:
        rows, shards, nbytes = data.rows, data.num_shards, data.manifest.nbytes
        bars = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress("verifying", *bars, console=error_console, transient=True) as progress:
            task = progress.add_task("", total=nbytes)
            problems = verify_dataset(data, progress=lambda done: progress.advance(task, done))
    if json:
        found = [asdict(problem) for problem in problems]
        print_json({"path": path, "rows": rows, "shards": shards, "nbytes": nbytes, "problems": found})
    else:
        _print_report(path, rows, shards, problems)
    if problems:
        raise typer.Exit(1)


def _print_report(path: str, rows: int, shards: int, problems: list[Problem]) -> None:
    for problem in problems:
        place = "the data set" if problem.shard is None else problem.shard
        if problem.row is not None:
            place += f", row {problem.row}, column {problem.column}"
        console.print(f"[red]{escape(place)}[/]: {escape(problem.reason)}", soft_wrap=True)
    if problems and not shards:
        error_console.print(f"[bold red]{escape(path)} holds no whole data set[/]")
    elif problems:
        damaged = len({problem.shard for problem in problems})
        error_console.print(f"[bold red]{escape(path)} is damaged[/]: {damaged} of {shards} shards; copy them again")
    else:
        counts = f"{rows:,} samples in {shards:,} shard{'s' if shards != 1 else ''}"
        console.print(f"[green]{escape(path)} is whole[/]: {counts}, every checksum holds")
