"""`forebay bench dropin`: what changing one import gives to a script whose data are no shards."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from forebay.cli.bench_tables import (
    bench_table,
    images_words,
    machine_words,
    rounds_words,
    speed_cell,
    times_cell,
)
from forebay.cli.console import console, error_console, print_json

if TYPE_CHECKING:
    from forebay.benchmarks import DropinReport

__all__ = ["bench_dropin"]

_DRAWN_PER_CLASS = 40
"""Photographs that are drawn where none are given."""


def bench_dropin(
    path: Annotated[
        Path | None,
        typer.Argument(help="A folder of images or of shards; left out, small photographs are drawn."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes, of either loader.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Timed passes of each side, after one that warms up.")] = 5,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Pictures a batch; small samples come by eight times as many.")
    ] = 128,
    batches: Annotated[
        int, typer.Option(min=1, help="Batches a pass of ready arrays; small samples have eight times as many.")
    ] = 48,
    size: Annotated[int, typer.Option(min=1, help="Side of pictures, in pixels.")] = 224,
    images: Annotated[int | None, typer.Option(min=1, help="Files a pass; by default 2048, fewer large ones.")] = None,
    strings: Annotated[
        int, typer.Option(min=1, help="Strings in the data set whose workers' memory is measured.")
    ] = 1_000_000,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Compare this loader with torch.utils.data.DataLoader where only the import changes.

    Both get the same arguments, workers that stay alive, and as many batches ahead. Before anything is timed, a whole
    pass is compared batch by batch, to the last bit. The second table is the memory of the workers while they read a
    data set of strings, three epochs long.

        forebay bench dropin                       drawn photographs; some minutes

        forebay bench dropin PHOTOS --rounds 9     your own, and longer
    """
    from forebay.benchmarks import DropinWork, compare_dropin  # imports torch

    work = DropinWork(
        batch_size=batch_size, batches=batches, size=size, images=images, strings=strings, workers=workers
    )
    with ExitStack() as opened, error_console.status("measuring") as status:
        report = compare_dropin(
            _drawn(Path(opened.enter_context(tempfile.TemporaryDirectory()))) if path is None else path,
            work,
            rounds=rounds,
            progress=lambda name: status.update(f"measuring: {name}"),
        )
    if json:
        print_json(report.to_dict())
        return
    console.print(_speed_table(report))
    console.print(_memory_table(report))
    console.print(_caption(report), style="dim")


def _drawn(folder: Path) -> Path:
    from forebay.benchmarks import draw_folder

    draw_folder(folder, per_class=_DRAWN_PER_CLASS)
    return folder


def _speed_table(report: DropinReport) -> Table:
    table = bench_table("samples/s", "forebay", "torch", "times torch", "asked")
    for row in report.rows:
        table.add_row(
            row.name,
            speed_cell(row.samples_per_s),
            speed_cell(row.torch_samples_per_s),
            times_cell(row.ratio),
            f"≥ {row.asked:g} ×",
        )
    return table


def _memory_table(report: DropinReport) -> Table:
    strings, workers = report.work.strings, report.work.workers
    table = bench_table(f"MB of {workers} workers, {strings:,} strings", "forebay", "torch", "of torch's", "asked")
    for row in report.memory:
        table.add_row(
            row.name, speed_cell(row.mb), speed_cell(row.torch_mb), times_cell(row.ratio), f"≤ {row.asked:g} ×"
        )
    return table


def _caption(report: DropinReport) -> str:
    work = report.work
    compared = sum(row.batches_compared for row in report.rows)
    return (
        f"{compared:,} batches were compared beforehand, all equal. {work.workers} worker processes of either loader, "
        f"kept alive, {report.prefetch} batches ahead of each; {rounds_words(report.rows[0].samples_per_s)}. Files: "
        f"{images_words(report.images, report.distinct_images)} a pass, {report.image_nbytes / 1000:,.0f} kB each, a "
        f"random window to {work.size} × {work.size} float32. Copied: each batch once when it has come, as to a GPU; "
        f"else batches are let go unread. Memory: proportional set sizes after {report.epochs} epochs of strings of 41 "
        f"characters. {machine_words(report.to_dict())}"
    )
