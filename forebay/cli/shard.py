"""`forebay shard`: folders of images to a data set of shards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from forebay.cache import parse_size
from forebay.cli.checked_images import CHECKS, BadImage, checked_images
from forebay.cli.console import console, error_console, print_json
from forebay.cli.inspect import human_size
from forebay.errors import ConfigError
from forebay.sharding import (
    ImageFile,
    ImageFolder,
    ShardWriter,
    list_class_folders,
    list_labelled_images,
    open_dataset,
    printable,
    valid_text,
)

__all__ = ["Check", "plan_resume", "shard", "write_images"]


class Check(StrEnum):
    """How closely each image is looked at before it is stored."""

    DECODE = "decode"
    HEADER = "header"
    NONE = "none"


def shard(
    src: Annotated[Path, typer.Argument(help="Folder of class folders of images, or of images named in --labels.")],
    dst: Annotated[Path, typer.Argument(help="Folder of the new data set; made when missing, else empty.")],
    labels: Annotated[
        Path | None, typer.Option(help="CSV (with a header) or JSONL with `file`, `label` and further columns to keep.")
    ] = None,
    shard_size: Annotated[str, typer.Option(help="Size at which a shard is closed.")] = "64MiB",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a write that was stopped.")] = False,
    check: Annotated[
        Check, typer.Option(help="Leave out images that do not decode, have no image header, or nothing.")
    ] = Check.DECODE,
    threads: Annotated[int, typer.Option(min=0, help="Threads that read and check; 0 for the cores there are.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Turn a folder of images into a data set of shards.

    Each folder in SRC is a class: `forebay shard photos shards` stores image, label (with the classes' names) and name
    of every image, encoded as it came. Images that cannot be read are left out and listed at the end. The same images
    give the same bytes and fingerprint on any machine.
    """
    if dst.resolve().is_relative_to(src.resolve()):
        raise ConfigError(f"{dst} lies within {src}, and its shards would be taken for images; write elsewhere")
    shard_nbytes = parse_size(shard_size)
    folder = list_class_folders(src) if labels is None else list_labelled_images(src, labels)
    report = write_images(folder, dst, shard_nbytes=shard_nbytes, resume=resume, check=check, threads=threads)
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
    threads: int = 0,
) -> dict[str, Any]:
    """Store the good images of a folder as a data set, with a progress bar; return what `forebay shard --json` prints.

    Raises:
        ConfigError: the destination is not empty, or no image is good.
        SourceError: the destination cannot be written.
    """
    try:
        return _write_images(folder, dst, shard_nbytes=shard_nbytes, resume=resume, check=check, threads=threads)
    except KeyboardInterrupt:
        error_console.print(f"the shards that are whole stay in {escape(str(dst))}; --resume goes on after them")
        raise


def _write_images(
    folder: ImageFolder, dst: Path, *, shard_nbytes: int, resume: bool, check: Check, threads: int
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
        bad, num_read, read_nbytes = _write(folder, writer, check=check, threads=threads)
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
        "bad_images": [{"file": printable(image.path), "reason": image.reason} for image in bad],
        "seconds": round(seconds, 3),
        "files_per_s": round(num_read / seconds, 1),
        "megabytes_per_s": round(read_nbytes / 1e6 / seconds, 1),
    }


def plan_resume(images: Sequence[ImageFile], kept: Sequence[str]) -> tuple[list[ImageFile], list[ImageFile]]:
    """What is left to do after an earlier write: images it found bad, to be told again, and those it did not reach.

    Args:
        images: all of them, in order.
        kept: names of the samples that are stored, in the same order.

    Raises:
        ConfigError: a stored image is not among `images` any more.
    """
    found_bad: list[ImageFile] = []
    place = 0
    for index, image in enumerate(images):
        if place == len(kept):
            return found_bad, list(images[index:])
        if valid_text(image.path) == kept[place]:
            place += 1
        else:
            found_bad.append(image)
    if place < len(kept):
        raise ConfigError(f"{printable(kept[place])} was stored by the write to be resumed, and is gone; write anew")
    return found_bad, []


def _write(folder: ImageFolder, writer: ShardWriter, *, check: Check, threads: int) -> tuple[list[BadImage], int, int]:
    """Store what is good; return what is bad, and how many images and bytes were read."""
    bad: list[BadImage] = []
    read_nbytes = 0
    found_bad, new = plan_resume(folder.images, list(writer.read_done("name")))
    bars = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"), TimeRemainingColumn())
    with Progress("sharding", *bars, console=error_console, transient=True) as progress:
        task = progress.add_task("", total=len(folder.images), completed=writer.rows_done, speed="")
        started = time.monotonic()
        checked = checked_images(folder.root, [*found_bad, *new], check=CHECKS[check], threads=threads)
        for index, (image, result) in enumerate(checked):
            if isinstance(result, BadImage):
                bad.append(result)
            elif index < len(found_bad):
                raise ConfigError(f"{printable(image.path)} of {folder.root} is new or has changed; write anew")
            else:
                read_nbytes += len(result)
                writer.write({"image": result, **image.values, "name": valid_text(image.path)})
            seconds = max(time.monotonic() - started, 1e-3)
            speed = f"{(index + 1) / seconds:,.0f} files/s, {read_nbytes / 1e6 / seconds:,.0f} MB/s"
            progress.update(task, advance=1, speed=speed)
    if len(bad) == len(folder.images):
        reasons = "; ".join(f"{printable(image.path)}: {image.reason}" for image in bad[:3])
        raise ConfigError(f"none of the {len(bad)} images of {folder.root} is good: {reasons}")
    return bad, len(found_bad) + len(new), read_nbytes


def _print_report(report: dict[str, Any]) -> None:
    bad = report["bad_images"]
    classes = f" of {len(report['classes'])} classes" if report["classes"] else ""
    shards = f"{report['shards']:,} shard{'s' if report['shards'] != 1 else ''}, {human_size(report['nbytes'])}"
    speed = f"{report['files_per_s']:,.0f} files/s, {report['megabytes_per_s']:,.0f} MB/s"
    console.print(f"[green]{report['rows']:,} images{classes}[/] in {shards}, {report['seconds']:,.1f} s ({speed})")
    console.print(f"{escape(report['path'])}: fingerprint {report['fingerprint']}", soft_wrap=True)
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
