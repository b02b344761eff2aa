"""`forebay shard`: folders of images to a data set of shards."""

from __future__ import annotations

import os
import time
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from forebay.cache import BucketDestination, is_url, open_place, parse_size, public_name
from forebay.cli.checked_images import BadImage, ImageWork, checked_images
from forebay.cli.console import counted, error_console, print_json, progress_bar
from forebay.cli.shard_report import Told, print_report
from forebay.cli.shard_resume import plan_resume
from forebay.errors import ConfigError
from forebay.sharding import (
    ImageFolder,
    ShardWriter,
    can_transcode,
    list_class_folders,
    list_labelled_images,
    make_addressable,
    printable,
    valid_text,
)

__all__ = ["Check", "Jpeg", "shard", "write_images"]


class Check(StrEnum):
    """How closely each image is looked at before it is stored."""

    DECODE = "decode"
    HEADER = "header"
    NONE = "none"


class Jpeg(StrEnum):
    """How JPEGs are stored."""

    ADDRESSABLE = "addressable"
    ORIGINAL = "original"


def shard(
    src: Annotated[Path, typer.Argument(help="Folder of class folders of images, or of images named in --labels.")],
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
        Check,
        typer.Option(
            help="Leave out images that do not decode whole; have no image header (faster); or none but empty files."
        ),
    ] = Check.DECODE,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Processes that read, check and transcode; 0 works in this one.",
            show_default="the cores there are",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Turn a folder of images into a data set of shards, in a folder or a bucket.

    Each folder in SRC is a class; image, label (with the classes' names) and name of every image are stored. Images
    that cannot be read are left out and listed at the end. The same images and settings give the same bytes and
    fingerprint on any machine, with any number of workers.

    JPEGs become crop-addressable: the same picture to every decoder, with marks that let a crop find its part, for up
    to 3 % more bytes. Those that cannot, and images of other formats, are stored as they came.

    For example: `forebay shard photos/train shards/train`, `forebay shard photos/train s3://bucket/train`
    """
    if not is_url(dst) and Path(dst).resolve().is_relative_to(src.resolve()):
        raise ConfigError(f"{dst} lies within {src}, and its shards would be taken for images; write elsewhere")
    shard_nbytes = parse_size(shard_size)
    if missing := _missing_transcoder():
        if jpeg is Jpeg.ADDRESSABLE:
            raise ConfigError(f"--jpeg=addressable cannot be done: {missing}")
        if jpeg is None:
            error_console.print(f"[yellow]JPEGs are stored as they came:[/] {escape(missing)}", soft_wrap=True)
    folder = list_class_folders(src) if labels is None else list_labelled_images(src, labels)
    try:
        report = write_images(
            folder, dst, shard_nbytes=shard_nbytes, resume=resume, check=check, jpeg=jpeg, workers=workers
        )
    except KeyboardInterrupt:
        if is_url(dst) or any(Path(dst).glob("*.arrow")):
            where = escape(public_name(dst) if is_url(dst) else dst)
            error_console.print(
                f"the shards that are whole stay in {where}; --resume goes on after them", soft_wrap=True
            )
        raise
    if json:
        print_json(report)
    else:
        print_report(report)


def write_images(
    folder: ImageFolder,
    dst: Path | str,
    *,
    shard_nbytes: int = 64 << 20,
    resume: bool = False,
    check: Check = Check.DECODE,
    jpeg: Jpeg | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Store the good images of a folder as a data set, with a progress bar; return what `forebay shard --json` prints.

    Args:
        folder: what to store, in this order.
        dst: folder or URL of the data set.
        shard_nbytes: size at which a shard is closed.
        resume: go on with a write that was stopped.
        check: how closely each image is looked at.
        jpeg: how JPEGs are stored; None for addressable where this installation can.
        workers: processes that read, check and transcode; None for the cores that this one may use, 0 for none.

    Raises:
        ConfigError: the destination is not empty, no image is good, or a write is resumed that stored JPEGs otherwise.
        SourceError: the destination cannot be written, or a worker process was lost.
    """
    if jpeg is None:
        jpeg = Jpeg.ADDRESSABLE if can_transcode() else Jpeg.ORIGINAL
    if workers is None:
        workers = len(os.sched_getaffinity(0))
    work = ImageWork(root=folder.root, check=check, addressable=jpeg is Jpeg.ADDRESSABLE)
    started = time.monotonic()
    with ShardWriter(
        BucketDestination(dst) if isinstance(dst, str) and is_url(dst) else dst,
        {"image": "image", **folder.columns, "name": "str"},
        classes=folder.classes,
        shard_nbytes=shard_nbytes,
        batch_nbytes=min(1 << 20, shard_nbytes),
        settings={"check": check.value, "jpeg": jpeg.value},
        resume=resume,
    ) as writer:
        told = _write(folder, writer, work, workers)
    seconds = time.monotonic() - started
    data = open_place(dst)
    return {
        "path": data.name,
        "fingerprint": data.fingerprint,
        "rows": data.rows,
        "shards": data.num_shards,
        "nbytes": data.manifest.nbytes,
        "classes": list(data.schema["label"].classes or ()),
        "ignored_files": folder.ignored,
        "unlabelled_images": folder.unlabelled,
        "bad_images": [{"file": printable(image.path), "reason": image.reason} for image in told.bad],
        "jpeg": told.jpegs(jpeg.value),
        "seconds": round(seconds, 3),
        "files_per_s": round(told.images / seconds, 1),
        "megabytes_per_s": round(told.source_nbytes / 1e6 / seconds, 1),
    }


def _missing_transcoder() -> str | None:
    """What to install before JPEGs can be made addressable; None when they can."""
    if can_transcode():
        return None
    try:
        make_addressable(b"")
    except ConfigError as error:
        return str(error)
    return None


def _write(folder: ImageFolder, writer: ShardWriter, work: ImageWork, workers: int) -> Told:
    """Store what is good, and count what becomes of each image."""
    told = Told()
    plan = plan_resume(folder.images, list(writer.read_done("name")))
    bars = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"), TimeRemainingColumn())
    with (
        progress_bar("sharding", *bars) as progress,
        closing(checked_images([*plan.found_bad, *plan.new], work, workers=workers)) as checked,
    ):
        task = progress.add_task("", total=len(folder.images), completed=writer.rows_done, speed="")
        started = time.monotonic()
        for image, result in checked:
            if isinstance(result, BadImage):
                told.bad.append(result)
            elif told.images < len(plan.found_bad):
                raise ConfigError(
                    f"{printable(image.path)} of {folder.root} was left out by the write to be resumed, and is good "
                    f"now: it is new, has changed, or that write had a stricter --check; undo that, or write anew"
                )
            else:
                told.add(result)
                writer.write({"image": result.data, **image.values, "name": valid_text(image.path)})
            told.images += 1
            seconds = max(time.monotonic() - started, 1e-3)
            speed = f"{told.images / seconds:,.0f} files/s, {told.source_nbytes / 1e6 / seconds:,.0f} MB/s"
            progress.update(task, advance=1, speed=speed)
    if len(told.bad) == len(folder.images):
        reasons = "; ".join(f"{printable(image.path)}: {image.reason}" for image in told.bad[:3])
        raise ConfigError(f"of {counted(len(told.bad), 'image')} in {folder.root} none is good: {reasons}")
    return told
