"""`forebay verify`: every checksum of a data set, and with `--decode` every picture too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TimeRemainingColumn, TransferSpeedColumn

from forebay.cache import open_place
from forebay.cli.console import console, counted, error_console, print_json, progress_bar
from forebay.errors import DecodeError, ManifestError, SourceError
from forebay.sharding import Column, Kind, Problem, ShardReader, StoredDataset, verify_dataset

__all__ = ["verify"]

_TOLD = 20
"""Pictures that do not decode, in text; `--json` has all."""


def verify(
    path: Annotated[str, typer.Argument(help="Folder or URL of a data set.")],
    decode: Annotated[
        bool,
        typer.Option(
            "--decode",
            help="Also decode every image, mask and recording, and the ends of every video; list those that do not.",
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Read a data set whole and compare every checksum; name the shards and samples that are damaged.

    Exit code 1 when there are any. A damaged shard can be copied again by itself: shards are independent files.

    Checksums tell that the bytes are those that were written, not that they were pictures. With `--decode` each one is
    decoded whole, in a thread a core; training decodes no more than its crops need, so this takes longer than an epoch.
    """
    problems: list[Problem] = []
    undecodable: list[Problem] = []
    try:
        data = open_place(path)
    except ManifestError as error:
        data = None
        problems.append(Problem(shard=None, row=None, column=None, reason=str(error)))
    if data is not None:
        problems += _with_checksums(data)
        if decode:
            undecodable += _with_decoding(data)
    report: dict[str, Any] = {
        "path": path,
        "rows": data.rows if data is not None else 0,
        "shards": data.num_shards if data is not None else 0,
        "nbytes": data.manifest.nbytes if data is not None else 0,
        "problems": [asdict(problem) for problem in problems],
    }
    if decode:
        report["pictures"] = data.rows * len(media_columns(data)) if data is not None else 0
        report["media"] = media_words(data) if data is not None else ""
        report["undecodable"] = [asdict(problem) for problem in undecodable]
    if json:
        print_json(report)
    else:
        _print_report(report, problems, undecodable)
    if problems or undecodable:
        raise typer.Exit(1)


def _with_checksums(data: StoredDataset) -> list[Problem]:
    bars = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    with progress_bar("verifying", *bars) as progress:
        task = progress.add_task("", total=data.manifest.nbytes)
        return verify_dataset(data, progress=lambda done: progress.advance(task, done))


def _with_decoding(data: StoredDataset) -> list[Problem]:
    bars = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress_bar("decoding", *bars) as progress:
        task = progress.add_task("", total=data.rows)
        return list(find_undecodable(data, progress=lambda rows: progress.advance(task, rows)))


def picture_columns(data: StoredDataset) -> list[Column]:
    """The columns that hold images or masks."""
    return [column for column in data.schema if column.kind in (Kind.IMAGE, Kind.MASK)]


def media_columns(data: StoredDataset) -> list[Column]:
    """The columns that hold what is decoded: images, masks, recordings, videos."""
    return [column for column in data.schema if column.kind in (Kind.IMAGE, Kind.MASK, Kind.AUDIO, Kind.VIDEO)]


def media_words(data: StoredDataset) -> str:
    """What is decoded of a data set, in words."""
    kinds = {column.kind for column in data.schema}
    heard = [word for kind, word in ((Kind.AUDIO, "recordings"), (Kind.VIDEO, "videos")) if kind in kinds]
    seen = ["images", "masks"] if kinds & {Kind.IMAGE, Kind.MASK} or not heard else []
    *others, last = [*seen, *heard]
    return f"{', '.join(others)} and {last}" if others else last


def find_undecodable(data: StoredDataset, *, progress: Callable[[int], None]) -> Iterator[Problem]:
    """The images, masks, recordings and videos that do not decode; in threads, in order.

    Those whose bytes are damaged or cannot be read are left out: `verify_dataset` tells them.

    Args:
        data: an opened data set.
        progress: called with a number of rows that are done.
    """
    columns = media_columns(data)
    for shard in range(data.num_shards):
        try:
            reader = data.open_shard(shard, [column.name for column in columns])
        except SourceError:
            progress(int(data.shard_rows[shard]))
            continue
        # The reader is closed last: no read may be under way. Leaving early drops the rows that no thread has begun.
        with reader, ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="forebay-verify") as threads:
            for problems in threads.map(partial(_decode_row, reader, columns), range(reader.rows)):
                yield from problems
                progress(1)


def _decode_row(reader: ShardReader, columns: list[Column], row: int) -> list[Problem]:
    from forebay.loader import check_audio, check_video, decode_image, decode_mask  # imports torch

    decoders: dict[Kind, Callable[[memoryview], object]] = {
        Kind.IMAGE: decode_image,
        Kind.MASK: decode_mask,
        Kind.AUDIO: check_audio,
        Kind.VIDEO: check_video,
    }
    problems = []
    for column in columns:
        try:
            decoders[column.kind](reader.read(row, column.name))
        except SourceError:
            continue
        except DecodeError as error:
            problems.append(Problem(shard=reader.shard, row=row, column=column.name, reason=str(error)))
    return problems


def _print_report(report: dict[str, Any], problems: list[Problem], undecodable: list[Problem]) -> None:
    path, shards = escape(report["path"]), counted(report["shards"], "shard")
    for problem in [*problems, *undecodable[:_TOLD]]:
        place = "the data set" if problem.shard is None else problem.shard
        if problem.row is not None:
            place += f", row {problem.row}, column {problem.column}"
        console.print(f"[red]{escape(place)}[/]: {escape(problem.reason)}", soft_wrap=True)
    if len(undecodable) > _TOLD:
        console.print(f"[red]and {len(undecodable) - _TOLD:,} more that do not decode[/]; --json lists all")
    counts = f"{counted(report['rows'], 'sample')} in {shards}"
    if problems and not report["shards"]:
        error_console.print(f"[bold red]{path} holds no whole data set[/]")
    elif problems:
        damaged = len({problem.shard for problem in problems})
        error_console.print(
            f"[bold red]{path} is damaged[/]: {damaged} of {shards}; copy {'it' if damaged == 1 else 'them'} again"
        )
    elif undecodable:
        console.print(f"{path} is whole: {counts}, every checksum holds")
    elif "pictures" in report:
        told = (
            f"all {report['pictures']:,} {report['media']} decode" if report["pictures"] else "and it holds no pictures"
        )
        console.print(f"[green]{path} is whole[/]: {counts}, every checksum holds, {told}")
    else:
        console.print(f"[green]{path} is whole[/]: {counts}, every checksum holds")
    if undecodable:
        error_console.print(
            f"[bold red]{len(undecodable):,} of {report['pictures']:,} {report['media']} do not decode[/], and their "
            "bytes are those that were written: write the data set anew without them (`forebay shard` leaves them out "
            'unless --check says otherwise), or train with on_error="skip"',
            soft_wrap=True,
        )
