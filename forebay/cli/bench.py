"""`forebay bench`: the numbers of the README, on your machine and your data."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import rich.box
import typer
from rich.table import Table

from forebay.cli.console import console, error_console, print_json
from forebay.errors import ConfigError

if TYPE_CHECKING:
    from forebay.benchmarks import LoaderComparison

__all__ = ["bench_app", "comparison_caption", "comparison_table"]

bench_app = typer.Typer(help="Measure, with equal work on both sides, and in turn.", no_args_is_help=True)


@bench_app.command("loader")
def bench_loader(
    path: Annotated[Path, typer.Argument(help="A folder of class folders of images, or a folder of shards.")],
    size: Annotated[int, typer.Option(min=1, help="Side of the square that images become, in pixels.")] = 224,
    batch_size: Annotated[int, typer.Option(min=1, help="Images a batch.")] = 128,
    threads: Annotated[int, typer.Option(min=1, help="Decode threads of this loader.")] = 2,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes of torch's DataLoader.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Timed passes of each side, after one that warms up.")] = 5,
    images: Annotated[int, typer.Option(min=1, help="Images a pass: a random choice, or all of them repeated.")] = 2048,
    normalize: Annotated[bool, typer.Option("--normalize", help="Give normalised float32 instead of uint8.")] = False,
    pillow: Annotated[bool, typer.Option(help="Also measure torch's DataLoader with Pillow, as most run it.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Compare this loader with torch.utils.data.DataLoader on your images.

    Both decode the same files, cut a window of random place and size, resize it with the same antialiased filter,
    mirror half of them, and give batches in channels_last memory. torch's side is written the fastest way that we know.
    Rounds of the sides take turns, so that a machine that slows down slows all of them.
    """
    from forebay.benchmarks import LoaderWork, compare  # imports torch

    work = LoaderWork(size=size, batch_size=batch_size, images=images, normalize=normalize)
    with error_console.status("laying out the images as files and as shards") as status:
        comparison = compare(
            path,
            work,
            threads=threads,
            workers=workers,
            rounds=rounds,
            pillow=pillow,
            progress=lambda name: status.update(f"measuring: {name}"),
        )
    if json:
        print_json(comparison.to_dict())
    else:
        console.print(comparison_table(comparison))
        console.print(comparison_caption(comparison), style="dim")


@bench_app.command("order")
def bench_order(
    samples: Annotated[int, typer.Option(min=1, help="Samples of the data set that is imagined.")] = 1_000_000_000,
    shards: Annotated[int, typer.Option(min=1, help="Its shards, of unequal numbers of rows.")] = 1_000_000,
    window: Annotated[int | None, typer.Option(min=1, help="Shards that the shuffle mixes; by default 64.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Measure the order of an epoch: no data is read, so any size can be tried.

    Time to open it and to the first sample, memory, time to seek to the middle, and positions a second.
    """
    from forebay.benchmarks import measure

    if shards > samples:
        raise ConfigError(f"--shards {shards} for --samples {samples}: give at most as many shards as samples")
    with error_console.status(f"{samples:,} samples in {shards:,} shards"):
        measured = measure(samples=samples, shards=shards, window=window)
    if json:
        print_json(measured)
        return
    table = Table("", "", show_header=False, title=f"the order of {samples:,} samples in {shards:,} shards")
    table.add_row("shards mixed at a time", f"{measured['window']:,}")
    table.add_row("opening an epoch", f"{1000 * measured['open_s']:,.1f} ms")
    table.add_row("to the first sample", f"{1000 * measured['first_sample_s']:,.1f} ms")
    table.add_row("memory, at its peak", f"{measured['peak_memory_mb']:,.1f} MB")
    table.add_row("a position in the middle", f"{1000 * measured['seek_s']:,.2f} ms")
    table.add_row("positions a second, one core", f"{measured['positions_per_s']:,.0f}")
    table.add_row("cipher calls a position", f"{measured['cipher_calls']:.3f}")
    console.print(table)


def comparison_table(comparison: LoaderComparison) -> Table:
    """One row a loader: images a second, their spread, and how this loader compares."""
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("loader", no_wrap=True)
    for heading in ("images/s", "slowest–fastest", "first batch", "forebay is"):
        table.add_column(heading, justify="right", no_wrap=True)
    ours = comparison.sides[0]
    for side in comparison.sides:
        ratio, low, high = ours.over(side)
        table.add_row(
            side.name,
            f"{side.median:,.0f}",
            f"{min(side.images_per_s):,.0f}–{max(side.images_per_s):,.0f}",
            f"{statistics.median(side.first_batch_s):.2f} s",
            "" if side is ours else f"[bold]{ratio:.2f} ×[/] ({low:.2f}–{high:.2f})",
            style="green" if side is ours else None,
        )
    return table


def comparison_caption(comparison: LoaderComparison) -> str:
    """What was measured, in words."""
    work = comparison.work
    machine = comparison.to_dict()["machine"]
    different = "" if comparison.distinct_images == work.images else f" ({comparison.distinct_images:,} different ones)"
    made = f"{work.size} × {work.size} {'float32' if work.normalize else 'uint8'}"
    rounds = len(comparison.sides[0].images_per_s)
    return (
        f"{comparison.threads} decode threads here, {comparison.workers} worker processes there; medians of {rounds} "
        "rounds of each in turn, after one to warm up, and of the ratios of paired rounds. "
        f"A round: {work.images:,} images{different} of "
        f"{comparison.image_nbytes / 1000:,.0f} kB to batches of {work.batch_size}, {made}; random windows, half of "
        f"them mirrored. Of the same windows, pixels differ by {comparison.pixel_difference:.2f} grey levels on "
        f"average. "
        f"{machine['cores']} cores, Python {machine['python']}, torch {machine['torch']}."
    )
