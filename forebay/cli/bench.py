"""`forebay bench`: the numbers of the README, on your machine and your data."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from forebay.cli.bench_audio import bench_audio
from forebay.cli.bench_cache import bench_cache
from forebay.cli.bench_decoded import bench_decoded
from forebay.cli.bench_dropin import bench_dropin
from forebay.cli.bench_gpu import bench_gpu
from forebay.cli.bench_ranks import bench_ranks
from forebay.cli.bench_remote import bench_remote
from forebay.cli.bench_tables import bench_table, images_words, machine_words, rounds_words, speed_cell, times_cell
from forebay.cli.bench_tabular import bench_tabular
from forebay.cli.bench_trainer import bench_trainer
from forebay.cli.console import console, error_console, print_json
from forebay.errors import ConfigError

if TYPE_CHECKING:
    from forebay.benchmarks import DecodeComparison, LoaderComparison, OverheadReport

__all__ = ["bench_app", "comparison_caption", "comparison_table"]

bench_app = typer.Typer(help="Measure, with equal work on both sides, and in turn.", no_args_is_help=True)
bench_app.command("gpu")(bench_gpu)
bench_app.command("audio")(bench_audio)
bench_app.command("cache")(bench_cache)
bench_app.command("decoded")(bench_decoded)
bench_app.command("dropin")(bench_dropin)
bench_app.command("remote")(bench_remote)
bench_app.command("ranks")(bench_ranks)
bench_app.command("trainer")(bench_trainer)
bench_app.command("tabular")(bench_tabular)

Source = Annotated[Path, typer.Argument(help="A folder of images, with class folders or without, or of shards.")]
Size = Annotated[int, typer.Option(min=1, help="Side of the square that images become, in pixels.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Images a batch.")]
Threads = Annotated[int, typer.Option(min=1, help="Decode threads.")]
Rounds = Annotated[int, typer.Option(min=1, help="Timed passes of each side, after one that warms up.")]
Images = Annotated[
    int | None,
    typer.Option(min=1, help="Images a pass: a random choice, or all repeated; by default 2048, fewer large ones."),
]
OpenCV = Annotated[
    bool | None,
    typer.Option(help="Also measure OpenCV's resize, which is not antialiased; by default where it is installed."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


@bench_app.command("loader")
def bench_loader(
    path: Source,
    size: Size = 224,
    batch_size: BatchSize = 128,
    threads: Threads = 2,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes of torch's DataLoader.")] = 2,
    rounds: Rounds = 5,
    images: Images = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Give normalised float32 instead of uint8.")] = False,
    opencv: OpenCV = None,
    pillow: Annotated[bool, typer.Option(help="Also measure torch's DataLoader with Pillow, as most run it.")] = True,
    addressable: Annotated[
        bool, typer.Option(help="Also measure this loader on crop-addressable JPEGs, as `forebay shard` writes them.")
    ] = True,
    json: Json = False,
) -> None:
    """Compare this loader with torch.utils.data.DataLoader on your images.

    All decode the same files, cut a window of random place and size, resize it, mirror half of them, and give batches
    in channels_last memory. torch's sides are written the fastest ways that we know, one with OpenCV's resize, one with
    this loader's filter. Rounds of the sides take turns, so that a machine that slows down slows all of them.
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
            opencv=_with_opencv(opencv),
            pillow=pillow,
            addressable=addressable,
            progress=lambda name: status.update(f"measuring: {name}"),
        )
    if json:
        print_json(comparison.to_dict())
    else:
        console.print(comparison_table(comparison))
        console.print(comparison_caption(comparison), style="dim")


@bench_app.command("decode")
def bench_decode(
    path: Source,
    size: Size = 224,
    batch_size: BatchSize = 128,
    threads: Threads = 1,
    rounds: Rounds = 5,
    images: Images = None,
    opencv: OpenCV = None,
    json: Json = False,
) -> None:
    """Compare ways to decode, without a loader: JPEGs in memory, windows drawn beforehand.

    Every way makes the same windows; how far its pixels are from Pillow's antialiased resize is told beside its speed.
    """
    from forebay.benchmarks import LoaderWork, compare_decoders

    work = LoaderWork(size=size, batch_size=batch_size, images=images)
    with error_console.status("reading the images") as status:
        comparison = compare_decoders(
            path,
            work,
            threads=threads,
            rounds=rounds,
            opencv=_with_opencv(opencv),
            progress=lambda name: status.update(f"measuring: {name}"),
        )
    if json:
        print_json(comparison.to_dict())
    else:
        console.print(_decode_table(comparison))
        console.print(_decode_caption(comparison), style="dim")


@bench_app.command("overhead")
def bench_overhead(
    path: Source,
    size: Size = 224,
    batch_size: BatchSize = 128,
    threads: Threads = 2,
    rounds: Rounds = 5,
    images: Images = None,
    json: Json = False,
) -> None:
    """Measure what this loader itself costs, each time beside the best that it could reach.

    Beside a training loop in pure Python that computes half of the time; with one sample in ten that costs ten times
    the others; and over the bare decoder on bytes in memory. Also the first batch of every epoch.
    """
    from forebay.benchmarks import LoaderWork, measure_overhead

    work = LoaderWork(size=size, batch_size=batch_size, images=images)
    with error_console.status("laying out the images as shards") as status:
        report = measure_overhead(
            path,
            work,
            threads=threads,
            rounds=rounds,
            progress=lambda name: status.update(f"measuring: {name}"),
        )
    if json:
        print_json(report.to_dict())
    else:
        console.print(_overhead_table(report))
        console.print(_overhead_caption(report), style="dim")


def _with_opencv(wanted: bool | None) -> bool:
    from forebay.benchmarks import has_opencv

    if wanted is None and not has_opencv():
        error_console.print("OpenCV's side is left out: pip install opencv-python-headless", style="dim")
    return has_opencv() if wanted is None else wanted


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
    """One row a loader: images a second, their spread, the first batch, and how this loader compares."""
    table = bench_table("loader", "images/s", "first batch", *(f"{side.name} is" for side in comparison.ours))
    for side in comparison.sides:
        firsts = side.first_batch_s
        table.add_row(
            side.name,
            speed_cell(side.images_per_s),
            f"{statistics.median(firsts):.2f} s\n[dim]{min(firsts):.2f}–{max(firsts):.2f}[/]",
            *("" if side is ours else times_cell(ours.over(side)) for ours in comparison.ours),
            style="green" if side in comparison.ours else None,
        )
    return table


def comparison_caption(comparison: LoaderComparison) -> str:
    """What was measured, in words."""
    work = comparison.work
    made = f"{work.size} × {work.size} {'float32' if work.normalize else 'uint8'}"
    reads = "; ".join(f"{side.name} {(side.read_nbytes_per_image or 0) / 1000:,.0f}" for side in comparison.ours)
    pixels = "; ".join(f"{side.name} {side.pixels.mean:.2f} ({side.pixels.p999:.0f})" for side in comparison.sides)
    very_first = "; ".join(f"{side.name} {side.very_first_batch_s:.2f}" for side in comparison.sides)
    before = comparison.addressable_before
    return (
        f"{comparison.threads} decode threads here ({comparison.ours[0].decoder}), {comparison.workers} worker "
        f"processes there; {rounds_words(comparison.sides[0].images_per_s)}. A round: "
        f"{images_words(comparison.images, comparison.distinct_images)} of {comparison.image_nbytes / 1000:,.0f} kB"
        f"{f', {before:,} of them crop-addressable as they came,' if before else ''} to batches of {work.batch_size}, "
        f"{made}; random windows, half of them mirrored. Read for an image, kB: {reads}. Grey levels from Pillow's "
        f"antialiased resize of the same windows, mean (99.9th percentile): {pixels}. First batch of the pass that "
        f"warms up, seconds: {very_first}. {machine_words(comparison.to_dict())}"
    )


def _decode_table(comparison: DecodeComparison) -> Table:
    first = comparison.sides[0]
    table = bench_table("decoder", "images/s", "a thread", "kB", "grey levels off", f"times {first.name}")
    for side in comparison.sides:
        table.add_row(
            side.name,
            speed_cell(side.images_per_s),
            f"{side.median / comparison.threads:,.0f}",
            f"{side.image_nbytes / 1000:,.0f}",
            f"{side.pixels.mean:.2f}\n[dim]99.9 %: {side.pixels.p999:.0f}[/]",
            "" if side is first else times_cell(side.over(first)),
            style="green" if side.name.startswith("forebay") else None,
        )
    return table


def _decode_caption(comparison: DecodeComparison) -> str:
    work = comparison.work
    return (
        f"Decode threads: {comparison.threads}; native kernel: {comparison.native or 'none in this build'}; "
        f"{rounds_words(comparison.sides[0].images_per_s)}. A round: "
        f"{images_words(comparison.images, comparison.distinct_images)}, in memory, to {work.size} × {work.size} "
        f"uint8, {work.batch_size} at a time; {comparison.addressable_images:,} have an addressable form. kB: those of "
        "an image that are looked at. Grey levels: from Pillow's antialiased resize of the same windows, on average. "
        f"{machine_words(comparison.to_dict())}"
    )


def _overhead_table(report: OverheadReport) -> Table:
    table = bench_table("this loader", "images/s", "against", "images/s", "share")
    for row in report.rows:
        table.add_row(
            row.name,
            speed_cell(row.images_per_s),
            row.best,
            speed_cell(row.best_images_per_s),
            times_cell(row.ratio),
        )
    return table


def _overhead_caption(report: OverheadReport) -> str:
    shares = " and ".join(f"{share:.0%}" for share in report.busy_share)
    firsts = ", ".join(f"{seconds:.2f}" for seconds in report.first_batch_s)
    return (
        f"{report.threads} decode threads ({report.decoder}) where not said otherwise; "
        f"{rounds_words(report.rows[0].images_per_s)}. A round: {images_words(report.images, report.distinct_images)}"
        f"{', crop-addressable where not said otherwise' if report.addressable else ''}. The busy loop computed "
        f"{shares} of the time: half, but for what it waits for the GIL or for a core. Batches with slow samples "
        f"{'are the same as without' if report.same_batches else '[bold red]DIFFER from those without[/]'}. First "
        f"batch after iter(loader), by epoch, seconds: {firsts}. {machine_words(report.to_dict())}"
    )
