"""`forebay bench trainer`: what the trainer hides of loading, and what it costs a step."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.bench_tables import bench_table, machine_words
from forebay.cli.console import console, error_console, print_json

__all__ = ["bench_trainer"]


def bench_trainer(
    path: Annotated[Path, typer.Argument(help="A folder of images, with class folders or without, or of shards.")],
    size: Annotated[int, typer.Option(min=1, help="Side of the square that images become, in pixels.")] = 224,
    batch_size: Annotated[int, typer.Option(min=1, help="Images a batch.")] = 16,
    images: Annotated[int, typer.Option(min=1, help="Images an epoch.")] = 1600,
    rounds: Annotated[int, typer.Option(min=1, help="Epochs of each situation, after one that warms up.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each pass that measures the overhead.")] = 1000,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Train beside a loader with one decode thread, with steps that wait or compute, and tell what was hidden.

    Overlap is (load + step - time) / min(load, step): 1 when the shorter one cost nothing. Both are measured alone,
    right before.
    """
    from forebay.benchmarks import LoaderWork, measure_trainer  # imports torch

    work = LoaderWork(size=size, batch_size=batch_size, images=images)
    with error_console.status("writing shards") as status:
        report = measure_trainer(
            path, work, rounds=rounds, steps=steps, progress=lambda name: status.update(f"measuring: {name}")
        )
    values = report.to_dict()
    if json:
        print_json(values)
        return
    table = bench_table("steps", "load, ms", "step, ms", "overlap", "waited for data")
    for row in report.rows:
        table.add_row(
            row.name,
            f"{statistics.median(row.load_s) / report.batches * 1000:.2f}",
            f"{statistics.median(row.step_s) / report.batches * 1000:.2f}",
            f"{statistics.median(row.overlap):.3f}",
            f"{statistics.median(row.stall_share):.2%}",
        )
    console.print(table)
    console.print(
        f"The trainer's thread works {statistics.median(report.overhead_us):.0f} microseconds a step more than by hand "
        f"({min(report.overhead_us):.0f} to {max(report.overhead_us):.0f}).\n"
        f"Medians of {rounds} epochs of {report.batches} batches; {machine_words(values)}",
        style="dim",
    )
