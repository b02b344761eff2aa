"""`forebay bench decoded`: epochs from stored pixels, beside torch's DataLoader, and the epoch that stores them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.bench_tables import bench_table, images_words, machine_words, rounds_words, speed_cell, times_cell
from forebay.cli.console import console, error_console, print_json

__all__ = ["bench_decoded"]


def bench_decoded(
    path: Annotated[Path, typer.Argument(help="A folder of images, with class folders or without, or of shards.")],
    shorter: Annotated[
        int, typer.Option(min=0, help="Side that all sides resize images to first; 0 keeps them whole.")
    ] = 256,
    size: Annotated[int, typer.Option(min=1, help="Side of the square that images become, in pixels.")] = 224,
    batch_size: Annotated[int, typer.Option(min=1, help="Images a batch.")] = 128,
    threads: Annotated[int, typer.Option(min=1, help="Threads of this loader.")] = 2,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes of torch's DataLoader.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Timed passes of each side, after one that warms up.")] = 5,
    images: Annotated[int | None, typer.Option(min=1, help="Images a pass; by default 2048, fewer large ones.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where caches and copies lie meanwhile; by default as TMPDIR says.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Measure the decoded cache: later epochs, the first one, and the ceiling.

    The first epochs have a new cache each round, with stored pixels or without; the ceiling is the kernel's resize of
    pixels in memory, without reading, verifying or a loader.
    """
    from forebay.benchmarks import LoaderWork, measure_decoded  # imports torch

    work = LoaderWork(size=size, batch_size=batch_size, images=images)
    with error_console.status("laying out the images as files and as shards") as status:
        report = measure_decoded(
            path,
            work,
            shorter=shorter or None,
            threads=threads,
            workers=workers,
            rounds=rounds,
            folder=folder,
            progress=lambda name: status.update(f"measuring: {name}"),
        )
    if json:
        print_json(report.to_dict())
        return
    table = bench_table("side", "images/s")
    for side in report.sides:
        table.add_row(side.name, speed_cell(side.images_per_s))
    console.print(table)
    ratios = bench_table("", "times")
    for name, ratio in report.ratios().items():
        ratios.add_row(name, times_cell(ratio))
    console.print(ratios)
    first = f"resized to {report.shorter} pixels, then " if report.shorter else ""
    console.print(
        f"{report.threads} threads here, {report.workers} worker processes there; "
        f"{rounds_words(report.sides[0].images_per_s)}. A round: "
        f"{images_words(report.images, report.distinct_images)}, {first}random windows of "
        f"{work.size} × {work.size} uint8. {machine_words(report.to_dict())}",
        style="dim",
    )
