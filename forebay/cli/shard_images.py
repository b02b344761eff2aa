"""`forebay shard` of a folder of images: each looked at, transcoded and stored.

What the command is told, and whether it is given images or a table, is `shard`'s.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from forebay.cache import BucketDestination, is_url, open_place
from forebay.cli.checked_images import BadImage, ImageWork, checked_images
from forebay.cli.console import counted, progress_bar
from forebay.cli.shard_report import Told, noun_of
from forebay.cli.shard_resume import plan_resume
from forebay.errors import ConfigError
from forebay.sharding import ImageFolder, Kind, ShardWriter, can_transcode, make_addressable, printable, valid_text

__all__ = ["Check", "Jpeg", "Media", "missing_transcoder", "write_images"]


class Check(StrEnum):
    """How closely each image is looked at before it is stored."""

    DECODE = "decode"
    HEADER = "header"
    NONE = "none"


class Media(StrEnum):
    """What the files hold."""

    IMAGE = Kind.IMAGE.value
    AUDIO = Kind.AUDIO.value
    VIDEO = Kind.VIDEO.value


class Jpeg(StrEnum):
    """How JPEGs are stored."""

    ADDRESSABLE = "addressable"
    ORIGINAL = "original"


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
        folder: what to store, in this order; recordings or videos likewise.
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
    images = folder.kind is Kind.IMAGE
    if jpeg is None:
        jpeg = Jpeg.ADDRESSABLE if images and can_transcode() else Jpeg.ORIGINAL
    if workers is None:
        workers = len(os.sched_getaffinity(0))
    work = ImageWork(root=folder.root, check=check, addressable=jpeg is Jpeg.ADDRESSABLE, kind=folder.kind)
    started = time.monotonic()
    with ShardWriter(
        BucketDestination(dst) if isinstance(dst, str) and is_url(dst) else dst,
        {folder.kind.value: folder.kind.value, **folder.columns, "name": "str"},
        classes=folder.classes,
        shard_nbytes=shard_nbytes,
        batch_nbytes=min(1 << 20, shard_nbytes),
        settings={"check": check.value, **({"jpeg": jpeg.value} if images else {})},
        resume=resume,
    ) as writer:
        told = _write(folder, writer, work, workers)
    seconds = time.monotonic() - started
    data = open_place(dst)
    return {
        "path": data.name,
        "media": folder.kind.value,
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


def missing_transcoder() -> str | None:
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
                writer.write({folder.kind.value: result.data, **image.values, "name": valid_text(image.path)})
            told.images += 1
            seconds = max(time.monotonic() - started, 1e-3)
            speed = f"{told.images / seconds:,.0f} files/s, {told.source_nbytes / 1e6 / seconds:,.0f} MB/s"
            progress.update(task, advance=1, speed=speed)
    if len(told.bad) == len(folder.images):
        reasons = "; ".join(f"{printable(image.path)}: {image.reason}" for image in told.bad[:3])
        files = counted(len(told.bad), noun_of(folder.kind))
        raise ConfigError(f"of {files} in {folder.root} none is good: {reasons}")
    return told
