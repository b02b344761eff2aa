"""`forebay bench gpu`: what decoding with DALI gives; the one command for a machine with a GPU."""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from forebay.cli.bench_tables import bench_table, images_words, machine_words, rounds_words, speed_cell, times_cell
from forebay.cli.console import console, error_console, print_json

if TYPE_CHECKING:
    from forebay.benchmarks import GpuReport

__all__ = ["bench_gpu"]

_DRAWN_PER_CLASS = 40
"""Photographs that are drawn where none are given."""


def bench_gpu(
    path: Annotated[
        Path | None,
        typer.Argument(
            help="A folder of images or of shards; left out, small photographs are drawn, which are no data."
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help='"cpu", or the number of a GPU; by default the first one, the CPU without any.')
    ] = None,
    size: Annotated[int, typer.Option(min=1, help="Side of the square that images become, in pixels.")] = 224,
    batch_size: Annotated[int, typer.Option(min=1, help="Images a batch.")] = 128,
    threads: Annotated[int, typer.Option(min=1, help="DALI's threads on the CPU, of every side.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Timed passes of each side, after one that warms up.")] = 5,
    images: Annotated[
        int | None, typer.Option(min=1, help="Images a pass; by default 16384 on a GPU, else 2048 or fewer large ones.")
    ] = None,
    share: Annotated[
        list[float] | None,
        typer.Option(
            min=0,
            max=1,
            help="Share of the images for the GPU's JPEG engines; may be repeated. [default: 0, 0.25, 0.5, 0.65, 1]",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Compare decode="dali" of this loader with DALI's own reader, and measure what a training step waits for it.

    The first table goes from storage to batches: DALI's file reader with its random crop, and this loader on the same
    images, as they came and crop-addressable, for each share of the images that the GPU's JPEG engines take. The second
    holds this loader beside what it could reach at best: DALI's graph alone; images without damage; ResNet-50 in
    bfloat16 (float32 on the CPU) on a batch that stays. Then the share of the steps' time that a batch is waited for,
    and how far pixels are from those of the CPU's decoder. Sides take turns, and beside each number stands what is
    asked of it.

    Without a GPU all of it runs in DALI's CPU mode: that shows that it works and says nothing of a GPU.

        forebay bench gpu PATH                          the first GPU, five shares

        forebay bench gpu PATH --share 0.65 --share 1   these two

        forebay bench gpu PATH --device cpu --json      DALI's CPU mode, as JSON
    """
    from forebay.benchmarks import HARDWARE_SHARES, LoaderWork, measure_gpu

    work = LoaderWork(size=size, batch_size=batch_size, images=images)
    device_id = _device_id(device)
    with ExitStack() as opened, error_console.status("laying out the images as files and as shards") as status:
        report = measure_gpu(
            _drawn(Path(opened.enter_context(tempfile.TemporaryDirectory()))) if path is None else path,
            work,
            device_id=device_id,
            threads=threads,
            rounds=rounds,
            hardware_shares=share or HARDWARE_SHARES,
            progress=lambda name: status.update(f"measuring: {name}"),
        )
    if json:
        print_json(report.to_dict())
        return
    console.print(_speed_table(report))
    console.print(_share_table(report))
    console.print(_caption(report), style="dim")


def _device_id(device: str | None) -> int | None:
    import torch

    if device is None:
        return 0 if torch.cuda.is_available() else None
    if device == "cpu":
        return None
    if not device.isdecimal():
        raise typer.BadParameter(f'--device {device}: give "cpu" or the number of a GPU')
    return int(device)


def _drawn(folder: Path) -> Path:
    from forebay.benchmarks import draw_folder

    draw_folder(folder, per_class=_DRAWN_PER_CLASS)
    return folder


def _speed_table(report: GpuReport) -> Table:
    """A row for each side; a column for each share of the hardware engines."""
    shares = ["images/s" if share is None else f"images/s at {share:g}" for share in report.hardware_shares]
    peer = report.sides[0]
    table = bench_table("from storage to batches", *shares, f"times {peer.name}", "asked")
    for side in report.sides:
        table.add_row(
            side.name,
            *map(speed_cell, side.images_per_s),
            "" if side is peer else times_cell(side.over(peer)),
            "" if side.asked is None else f"≥ {side.asked:g} ×",
            style=None if side is peer else "green",
        )
    return table


def _share_table(report: GpuReport) -> Table:
    """A row for each thing that is measured beside its best, then the stall and the pixels."""
    table = bench_table("this loader", "images/s", "against", "images/s", "measured", "asked")
    for row, asked in zip(report.rows, report.asked, strict=True):
        table.add_row(
            row.name,
            speed_cell(row.images_per_s),
            row.best,
            speed_cell(row.best_images_per_s),
            times_cell(row.ratio),
            f"≥ {asked:g} ×",
        )
    stall = report.stall_shares
    measured = f"[bold]{statistics.median(stall):.2%}[/]\n[dim]{min(stall):.2%}–{max(stall):.2%}[/]"
    table.add_row("share of these steps' time that a batch is waited for", "", "", "", measured, "< 1 %")
    for name, check in report.pixels.items():
        told = f"[bold]{check.mean:.2f}[/]\n[dim]99.9 %: {check.p999}; most: {check.largest}[/]"
        table.add_row(f"{name}: grey levels from the CPU's decoder, {check.images:,} images", "", "", "", told, "≤ 1")
    return table


def _caption(report: GpuReport) -> str:
    work = report.work
    where = (
        f"on {report.device}, mode {report.mode!r}"
        if report.on_gpu
        else "in its CPU mode, since there is no GPU or none was asked for: these are no numbers of a GPU"
    )
    shares = (
        "Shares of the images for the GPU's JPEG engines head the columns; ratios are those of each side's best. "
        if report.on_gpu
        else ""
    )
    few = "" if report.on_gpu else ", too few to tell more than that it works"
    return (
        f"DALI {report.dali}, nvImageCodec {report.nvimagecodec}, {where}; DALI's threads: {report.threads}. The "
        f"loader says: {report.decoder}. {shares}{rounds_words(report.rows[0].images_per_s).capitalize()}. A round: "
        f"{images_words(report.images, report.distinct_images)} of {report.image_nbytes / 1000:,.0f} kB to batches of "
        f"{work.batch_size}, {work.size} × {work.size} uint8; random windows, half of them mirrored. DALI's own reader "
        "draws its windows itself and does not smooth chroma, as is its default, which is faster. ResNet-50: "
        f"{report.steps} steps of {report.step_images} images a round{few}; its first batch is not counted. "
        f"{machine_words(report.to_dict())}"
    )
