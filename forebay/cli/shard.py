"""`forebay shard`: folders of images, recordings or videos, or a table of Parquet, to a data set of shards.

It says which of the two is given, and refuses options of the other; the work is done by `shard_images`, `shard_table`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from forebay.cache import is_table, is_url, parse_size, public_name
from forebay.cli.console import error_console, print_json
from forebay.cli.shard_images import Check, Jpeg, Media, missing_transcoder, write_images
from forebay.cli.shard_report import print_report
from forebay.cli.shard_table import print_table_report, write_table
from forebay.cli.table_pass import SchemaChange
from forebay.errors import ConfigError
from forebay.sharding import Kind, find_kind, list_class_folders, list_labelled_images

__all__ = ["shard"]


def shard(
    src: Annotated[
        str,
        typer.Argument(
            help="Folder of class folders of images, audio or video files, or of files named in --labels. Or a table: "
            "a Parquet file, a folder or tree of them, a glob or a URL."
        ),
    ],
    dst: Annotated[
        str,
        typer.Argument(
            help="Folder or URL (s3://bucket/folder, gs://, az://) of the new data set; made when missing, empty "
            "unless --resume."
        ),
    ],
    labels: Annotated[
        Path | None, typer.Option(help="CSV (with a header) or JSONL with `file`, `label` and further columns to keep.")
    ] = None,
    media: Annotated[
        Media | None,
        typer.Option(help="What is stored, where a folder holds several.", show_default="what the folder holds"),
    ] = None,
    jpeg: Annotated[
        Jpeg | None,
        typer.Option(
            help="addressable: a crop reads and decodes only what it needs, pixels unchanged; original: byte for byte.",
            show_default="addressable, where this installation can",
        ),
    ] = None,
    shard_size: Annotated[str, typer.Option(help="Size at which a shard is closed, such as 200MB.")] = "64MiB",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a write that was stopped; what it stored is kept as it is.")
    ] = False,
    check: Annotated[
        Check | None,
        typer.Option(
            help="Leave out files that do not decode whole (of a video: its first frame and its last); that have no "
            "header of a known format (faster); or none but empty files.",
            show_default="decode",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Processes that read, check and transcode; 0 works in this one. Of a table threads, at least 1.",
            show_default="the cores there are",
        ),
    ] = None,
    table_transform: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Of a table: a function of a pyarrow.RecordBatch (or a polars or pandas frame, by its annotation). It "
            "may drop and add rows and columns.",
        ),
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="Of a table: a column to read, or several; if none, all.")
    ] = None,
    schema_change: Annotated[
        SchemaChange, typer.Option(help="Of a table: what may differ between the files' schemas.")
    ] = "error",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Turn a folder of images, audio or video files, or a table of Parquet, into shards, in a folder or a bucket.

    Each folder in SRC is a class; image (audio, video), label (with the classes' names) and name of every file are
    stored. Files that cannot be read are left out and listed at the end. The same files and settings give the same
    bytes and fingerprint on any machine, with any number of workers.

    JPEGs become crop-addressable: the same picture to every decoder, with marks that let a crop find its part, for up
    to 3 % more bytes. Those that cannot, and images of other formats, are stored as they came.

    Of a table each row is a sample, in the order of the files: numbers, texts and bytes as they are, lists of numbers
    as tensors. A null, or a column of another type, is refused by name. Tables can be read in place too; shards of them
    are for functions that change the number of rows.

    For example: `forebay shard photos/train shards/train`, `forebay shard photos/train s3://bucket/train`,
    `forebay shard clicks/ shards/clicks --table-transform features:sessions`
    """
    table = table_transform is not None or (labels is None and (is_url(src) or is_table(src)))
    others: dict[str, object] = {"--table-transform": table_transform, "--column": column}
    if schema_change != "error":
        others["--schema-change"] = schema_change
    if table:
        others = {"--labels": labels, "--media": media, "--jpeg": jpeg, "--check": check}
    for option, value in others.items():
        if value is not None:
            raise ConfigError(
                f"{option} is for {'images' if table else 'tables'}, and {public_name(src) if is_url(src) else src} is "
                f"read as {'a table of Parquet files' if table else 'a folder of images'}; leave it out"
            )
    shard_nbytes = parse_size(shard_size)
    with _telling_what_stays(dst):
        if table:
            report = write_table(
                src,
                dst,
                columns=column or None,
                transform=table_transform,
                schema_change=schema_change,
                shard_nbytes=shard_nbytes,
                resume=resume,
                workers=workers,
            )
        else:
            if not is_url(dst) and Path(dst).resolve().is_relative_to(Path(src).resolve()):
                raise ConfigError(f"{dst} lies within {src}, and its shards would be taken for images; write elsewhere")
            kind = find_kind(Path(src)) if media is None else Kind(media.value)
            if kind is Kind.IMAGE:
                _tell_transcoder(jpeg)
            elif jpeg is not None:
                raise ConfigError(
                    f"--jpeg={jpeg.value} is for images, and {src} is stored as {kind.value}; leave it out"
                )
            folder = list_class_folders(src, kind) if labels is None else list_labelled_images(src, labels, kind)
            report = write_images(
                folder,
                dst,
                shard_nbytes=shard_nbytes,
                resume=resume,
                check=check or Check.DECODE,
                jpeg=jpeg,
                workers=workers,
            )
    if json:
        print_json(report)
    elif table:
        print_table_report(report)
    else:
        print_report(report)


def _tell_transcoder(jpeg: Jpeg | None) -> None:
    """Say, or refuse, that JPEGs cannot be made addressable."""
    missing = missing_transcoder()
    if missing is None:
        return
    if jpeg is Jpeg.ADDRESSABLE:
        raise ConfigError(f"--jpeg=addressable cannot be done: {missing}")
    if jpeg is None:
        error_console.print(f"[yellow]JPEGs are stored as they came:[/] {escape(missing)}", soft_wrap=True)


@contextmanager
def _telling_what_stays(dst: str) -> Iterator[None]:
    """On Ctrl-C, say that the write can be resumed."""
    try:
        yield
    except KeyboardInterrupt:
        if is_url(dst) or any(Path(dst).glob("*.arrow")):
            where = escape(public_name(dst) if is_url(dst) else dst)
            error_console.print(
                f"the shards that are whole stay in {where}; --resume goes on after them", soft_wrap=True
            )
        raise
