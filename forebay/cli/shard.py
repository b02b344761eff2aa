"""`forebay shard`: folders of images to a data set of shards."""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from forebay.cache import parse_size
from forebay.cli.checked_images import BadImage, CheckedImage, ImageWork, checked_images
from forebay.cli.console import console, error_console, print_json
from forebay.cli.inspect import human_size
from forebay.errors import ConfigError
from forebay.sharding import (
    ImageFile,
    ImageFolder,
    ShardWriter,
    can_transcode,
    describe_jpeg,
    list_class_folders,
    list_labelled_images,
    make_addressable,
    open_dataset,
    printable,
    valid_text,
)

__all__ = ["Check", "Jpeg", "ResumePlan", "plan_resume", "shard", "write_images"]

_JPEG_SUFFIXES = frozenset({".jfif", ".jpe", ".jpeg", ".jpg", ".mpo"})
_COMPARED = 32
"""Stored JPEGs that a resumed write compares with what it would store: a tenth of a second."""
_REASONS_TOLD = 8


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
    dst: Annotated[Path, typer.Argument(help="Folder of the new data set; made when missing, else empty.")],
    labels: Annotated[
        Path | None, typer.Option(help="CSV (with a header) or JSONL with `file`, `label` and further columns to keep.")
    ] = None,
    jpeg: Annotated[
        Jpeg | None,
        typer.Option(
            help="Store JPEGs so that a crop reads and decodes only what it needs, pixels unchanged; or byte for byte.",
            show_default="addressable, where this installation can",
        ),
    ] = None,
    shard_size: Annotated[str, typer.Option(help="Size at which a shard is closed.")] = "64MiB",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a write that was stopped.")] = False,
    check: Annotated[
        Check, typer.Option(help="Leave out images that do not decode, have no image header, or nothing.")
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
    """Turn a folder of images into a data set of shards.

    Each folder in SRC is a class: `forebay shard photos shards` stores image, label (with the classes' names) and name
    of every image. Images that cannot be read are left out and listed at the end. The same images give the same bytes
    and fingerprint on any machine, with any number of workers.

    JPEGs become crop-addressable: the same picture to every decoder, with marks that let a crop find its part. Those
    that cannot, and images of other formats, are stored as they came.
    """
    if dst.resolve().is_relative_to(src.resolve()):
        raise ConfigError(f"{dst} lies within {src}, and its shards would be taken for images; write elsewhere")
    shard_nbytes = parse_size(shard_size)
    if missing := _missing_transcoder():
        if jpeg is Jpeg.ADDRESSABLE:
            raise ConfigError(f"--jpeg=addressable cannot be done: {missing}")
        if jpeg is None:
            error_console.print(f"[yellow]JPEGs are stored as they came:[/] {escape(missing)}", soft_wrap=True)
    folder = list_class_folders(src) if labels is None else list_labelled_images(src, labels)
    report = write_images(
        folder, dst, shard_nbytes=shard_nbytes, resume=resume, check=check, jpeg=jpeg, workers=workers
    )
    if json:
        print_json(report)
    else:
        _print_report(report)


def write_images(
    folder: ImageFolder,
    dst: Path,
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
        dst: folder of the data set.
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
    try:
        return _write_images(folder, dst, work, shard_nbytes=shard_nbytes, resume=resume, workers=workers)
    except KeyboardInterrupt:
        error_console.print(f"the shards that are whole stay in {escape(str(dst))}; --resume goes on after them")
        raise


def _write_images(
    folder: ImageFolder, dst: Path, work: ImageWork, *, shard_nbytes: int, resume: bool, workers: int
) -> dict[str, Any]:
    started = time.monotonic()
    with ShardWriter(
        dst,
        {"image": "image", **folder.columns, "name": "str"},
        classes=folder.classes,
        shard_nbytes=shard_nbytes,
        batch_nbytes=min(1 << 20, shard_nbytes),
        resume=resume,
    ) as writer:
        told = _write(folder, writer, work, workers)
    seconds = time.monotonic() - started
    data = open_dataset(dst)
    return {
        "path": str(dst),
        "fingerprint": data.fingerprint,
        "rows": data.rows,
        "shards": data.num_shards,
        "nbytes": data.manifest.nbytes,
        "classes": list(data.schema["label"].classes or ()),
        "ignored_files": folder.ignored,
        "unlabelled_images": folder.unlabelled,
        "bad_images": [{"file": printable(image.path), "reason": image.reason} for image in told.bad],
        "jpeg": _jpeg_report(work, told),
        "seconds": round(seconds, 3),
        "files_per_s": round(told.images / seconds, 1),
        "megabytes_per_s": round(told.source_nbytes / 1e6 / seconds, 1),
    }


@dataclass(slots=True)
class _Told:
    """What became of the images that this run looked at."""

    images: int = 0
    source_nbytes: int = 0
    bad: list[BadImage] = field(default_factory=list)
    addressable: int = 0
    addressable_source_nbytes: int = 0
    addressable_nbytes: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    """JPEGs that stayed as they were, by the reason."""

    def add(self, image: CheckedImage) -> None:
        self.source_nbytes += image.source_nbytes
        if image.addressable:
            self.addressable += 1
            self.addressable_source_nbytes += image.source_nbytes
            self.addressable_nbytes += len(image.data)
        elif image.kept_because is not None:
            self.kept[image.kept_because] += 1


def _jpeg_report(work: ImageWork, told: _Told) -> dict[str, Any]:
    before, after = told.addressable_source_nbytes, told.addressable_nbytes
    return {
        "setting": (Jpeg.ADDRESSABLE if work.addressable else Jpeg.ORIGINAL).value,
        "addressable": told.addressable,
        "nbytes_before": before,
        "nbytes_after": after,
        "growth_percent": round(100 * (after / before - 1), 2) if before else 0.0,
        "kept": dict(told.kept.most_common()),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumePlan:
    """What an earlier write has done, and what it left."""

    stored: Sequence[ImageFile]
    found_bad: Sequence[ImageFile]
    """Those among the stored that it left out; to be told again."""
    new: Sequence[ImageFile]
    """Those that it did not reach."""


def plan_resume(images: Sequence[ImageFile], kept: Sequence[str]) -> ResumePlan:
    """Divide the images by what is stored of them.

    Args:
        images: all of them, in order.
        kept: names of the samples that are stored, in the same order.

    Raises:
        ConfigError: a stored image is not among `images` any more.
    """
    stored: list[ImageFile] = []
    found_bad: list[ImageFile] = []
    for index, image in enumerate(images):
        if len(stored) == len(kept):
            return ResumePlan(stored=stored, found_bad=found_bad, new=images[index:])
        (stored if valid_text(image.path) == kept[len(stored)] else found_bad).append(image)
    if len(stored) < len(kept):
        gone = printable(kept[len(stored)])
        raise ConfigError(f"{gone} was stored by the write to be resumed, and is gone; write anew")
    return ResumePlan(stored=stored, found_bad=found_bad, new=[])


def _check_stored_alike(work: ImageWork, images: Sequence[ImageFile], stored: Iterator[bytes], dst: Path) -> None:
    """Refuse to go on with a write that stored JPEGs otherwise: the result would be no run's of its own.

    Raises:
        ConfigError: one of the first JPEGs would be stored in other bytes; says with which setting it was.
    """
    jpegs = [row for row, image in enumerate(images) if os.path.splitext(image.path)[1].lower() in _JPEG_SUFFIXES]
    wanted = frozenset(jpegs[:_COMPARED])
    for row, data in enumerate(islice(stored, max(wanted, default=-1) + 1)):
        if row not in wanted:
            continue
        now = dataclasses.replace(work, check=Check.NONE)(images[row])
        if isinstance(now, CheckedImage) and now.data == data:
            continue
        source = dataclasses.replace(work, check=Check.NONE, addressable=False)(images[row])
        if isinstance(source, CheckedImage) and source.data == data:
            reason = "that write began with --jpeg=original; give it again"
        elif describe_jpeg(data) is not None and not work.addressable:
            reason = "that write began with --jpeg=addressable; give it again"
        else:
            reason = "the image has changed since, or another version of forebay wrote it; write anew"
        raise ConfigError(
            f"{printable(images[row].path)} is not stored in the unfinished write in {dst} as it would be now: {reason}"
        )


def _missing_transcoder() -> str | None:
    """What to install before JPEGs can be made addressable; None when they can."""
    if can_transcode():
        return None
    try:
        make_addressable(b"")
    except ConfigError as error:
        return str(error)
    return None


def _write(folder: ImageFolder, writer: ShardWriter, work: ImageWork, workers: int) -> _Told:
    """Store what is good."""
    told = _Told()
    plan = plan_resume(folder.images, list(writer.read_done("name")))
    _check_stored_alike(work, plan.stored, writer.read_done("image"), writer.path)
    bars = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"), TimeRemainingColumn())
    with (
        Progress("sharding", *bars, console=error_console, transient=True) as progress,
        closing(checked_images([*plan.found_bad, *plan.new], work, workers=workers)) as checked,
    ):
        task = progress.add_task("", total=len(folder.images), completed=writer.rows_done, speed="")
        started = time.monotonic()
        for image, result in checked:
            if isinstance(result, BadImage):
                told.bad.append(result)
            elif told.images < len(plan.found_bad):
                raise ConfigError(f"{printable(image.path)} of {folder.root} is new or has changed; write anew")
            else:
                told.add(result)
                writer.write({"image": result.data, **image.values, "name": valid_text(image.path)})
            told.images += 1
            seconds = max(time.monotonic() - started, 1e-3)
            speed = f"{told.images / seconds:,.0f} files/s, {told.source_nbytes / 1e6 / seconds:,.0f} MB/s"
            progress.update(task, advance=1, speed=speed)
    if len(told.bad) == len(folder.images):
        reasons = "; ".join(f"{printable(image.path)}: {image.reason}" for image in told.bad[:3])
        raise ConfigError(f"none of the {len(told.bad)} images of {folder.root} is good: {reasons}")
    return told


def _print_report(report: dict[str, Any]) -> None:
    bad = report["bad_images"]
    classes = f" of {len(report['classes'])} classes" if report["classes"] else ""
    shards = f"{report['shards']:,} shard{'s' if report['shards'] != 1 else ''}, {human_size(report['nbytes'])}"
    speed = f"{report['files_per_s']:,.0f} files/s, {report['megabytes_per_s']:,.0f} MB/s"
    console.print(f"[green]{report['rows']:,} images{classes}[/] in {shards}, {report['seconds']:,.1f} s ({speed})")
    console.print(f"{escape(report['path'])}: fingerprint {report['fingerprint']}", soft_wrap=True)
    _print_jpegs(report["jpeg"])
    if report["ignored_files"]:
        error_console.print(f"{report['ignored_files']:,} files were left out: their names are not those of images")
    if report["unlabelled_images"]:
        error_console.print(
            f"[yellow]{report['unlabelled_images']:,} images were left out: the labels do not name them[/]"
        )
    if bad:
        error_console.print(f"[bold yellow]{len(bad):,} bad images were left out:[/]")
        for image in bad:
            error_console.print(f"  {escape(image['file'])}: {escape(image['reason'])}", soft_wrap=True)


def _print_jpegs(jpeg: dict[str, Any]) -> None:
    if jpeg["addressable"]:
        sizes = f"{human_size(jpeg['nbytes_before'])} became {human_size(jpeg['nbytes_after'])}"
        made = "JPEG is" if jpeg["addressable"] == 1 else "JPEGs are"
        console.print(
            f"{jpeg['addressable']:,} {made} crop-addressable: {sizes} ({jpeg['growth_percent']:+.1f} %)",
            soft_wrap=True,
        )
    kept = list(jpeg["kept"].items())
    if kept:
        console.print("Kept as they were:")
        for reason, count in kept[:_REASONS_TOLD]:
            console.print(f"  {count:,}: {escape(reason)}", soft_wrap=True)
        if rest := sum(count for _, count in kept[_REASONS_TOLD:]):
            console.print(f"  {rest:,} for other reasons; --json tells all")
