"""`forebay bench ranks`: what it costs to divide the loader's work among processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.bench_tables import bench_table, images_words, machine_words, rounds_words, speed_cell, times_cell
from forebay.cli.console import console, error_console, print_json

__all__ = ["bench_ranks"]


def bench_ranks(
    path: Annotated[Path, typer.Argument(help="A folder of images, with class folders or without, or of shards.")],
    size: Annotated[int, typer.Option(min=1, help="Side of the square that images become, in pixels.")] = 224,
    batch_size: Annotated[int, typer.Option(min=1, help="Images a batch, over all ranks.")] = 128,
    ranks: Annotated[int, typer.Option(min=1, help="Processes that divide each batch.")] = 2,
    threads: Annotated[int, typer.Option(min=1, help="Decode threads of all ranks together.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Timed passes of each side, after one that warms up.")] = 5,
    images: Annotated[int | None, typer.Option(min=1, help="Images a pass; by default 2048, fewer large ones.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Compare ranks that have a share of the decode threads each with one rank that has them all, loaders alone."""
    from forebay.benchmarks import LoaderWork, compare_ranks  # imports torch

    work = LoaderWork(size=size, batch_size=batch_size, images=images)
    with error_console.status("laying out the images as shards") as status:
        comparison = compare_ranks(
            path,
            work,
            ranks=ranks,
            threads=threads,
            rounds=rounds,
            progress=lambda name: status.update(f"measuring: {name}"),
        )
    if json:
        print_json(comparison.to_dict())
        return
    table = bench_table("ranks", "images/s", f"{ranks} over one")
    table.add_row(str(ranks), speed_cell(comparison.divided), times_cell(comparison.ratio))
    table.add_row("one", speed_cell(comparison.alone), "")
    console.print(table)
    console.print(
        f"{threads} decode threads on each side; {rounds_words(comparison.alone)}. A round: "
        f"{images_words(comparison.images, comparison.distinct_images)}, {batch_size} a global batch. "
        f"{machine_words(comparison.to_dict())}",
        style="dim",
    )
