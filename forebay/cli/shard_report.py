"""What `forebay shard` tells at the end: counted while it works, printed when it is done."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rich.markup import escape

from forebay.cli.checked_images import BadImage, CheckedImage
from forebay.cli.console import console, counted, error_console
from forebay.cli.inspect import human_size

__all__ = ["Told", "noun_of", "print_report"]

_REASONS_TOLD = 8


@dataclass(slots=True)
class Told:
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
        """Count an image that is stored."""
        self.source_nbytes += image.source_nbytes
        if image.addressable:
            self.addressable += 1
            self.addressable_source_nbytes += image.source_nbytes
            self.addressable_nbytes += len(image.data)
        elif image.kept_because is not None:
            self.kept[image.kept_because] += 1

    def jpegs(self, setting: str) -> dict[str, Any]:
        """What became of the JPEGs, as `--json` has it."""
        before, after = self.addressable_source_nbytes, self.addressable_nbytes
        return {
            "setting": setting,
            "addressable": self.addressable,
            "nbytes_before": before,
            "nbytes_after": after,
            "growth_percent": round(100 * (after / before - 1), 2) if before else 0.0,
            "kept": dict(self.kept.most_common()),
        }


def noun_of(kind: str) -> str:
    """What one file of a kind is called."""
    return {"audio": "recording"}.get(kind, kind)


def print_report(report: dict[str, Any]) -> None:
    """Print in sentences what `--json` gives as an object."""
    bad, noun = report["bad_images"], noun_of(report["media"])
    images, shards = counted(report["rows"], noun), counted(report["shards"], "shard")
    if report["classes"]:
        images += f" in {len(report['classes']):,} class{'es' if len(report['classes']) != 1 else ''}"
    speed = f"{report['files_per_s']:,.0f} files/s, {report['megabytes_per_s']:,.0f} MB/s"
    console.print(f"[green]{images}[/]: {shards}, {human_size(report['nbytes'])}, {report['seconds']:,.1f} s ({speed})")
    console.print(f"{escape(report['path'])}: fingerprint {report['fingerprint']}", soft_wrap=True)
    _print_jpegs(report["jpeg"])
    if report["ignored_files"]:
        error_console.print(f"{counted(report['ignored_files'], 'file')} left out: no {noun} by its name")
    if report["unlabelled_images"]:
        error_console.print(
            f"[yellow]{counted(report['unlabelled_images'], noun)} left out: not named by the labels[/]"
        )
    if bad:
        error_console.print(f"[bold yellow]{counted(len(bad), f'bad {noun}')} left out:[/]")
        for image in bad:
            error_console.print(f"  {escape(image['file'])}: {escape(image['reason'])}", soft_wrap=True)


def _print_jpegs(jpeg: dict[str, Any]) -> None:
    if jpeg["addressable"]:
        sizes = f"{human_size(jpeg['nbytes_before'])} became {human_size(jpeg['nbytes_after'])}"
        console.print(
            f"{counted(jpeg['addressable'], 'JPEG')} made crop-addressable by this command: {sizes} "
            f"({jpeg['growth_percent']:+.1f} %)",
            soft_wrap=True,
        )
    kept = list(jpeg["kept"].items())
    if kept:
        console.print("Kept as they were, by this command:")
        for reason, count in kept[:_REASONS_TOLD]:
            console.print(f"  {count:,}: {escape(reason)}", soft_wrap=True)
        if rest := sum(count for _, count in kept[_REASONS_TOLD:]):
            console.print(f"  {rest:,} for other reasons; --json tells all")
