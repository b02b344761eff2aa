"""`forebay bench audio`: random clips of recordings, beside torch's DataLoader with soundfile."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.bench_tables import bench_table, machine_words, rounds_words, speed_cell, times_cell
from forebay.cli.console import console, error_console, print_json

__all__ = ["bench_audio"]


def bench_audio(
    path: Annotated[Path, typer.Argument(help="A folder that holds recordings, at any depth.")],
    seconds: Annotated[float, typer.Option(help="Length of a clip.")] = 1.0,
    clips: Annotated[int, typer.Option(min=1, help="Clips a pass; recordings are repeated.")] = 400,
    batch_size: Annotated[int, typer.Option(min=1, help="Clips a batch.")] = 32,
    threads: Annotated[int, typer.Option(min=1, help="Decode threads.")] = 2,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes of torch's DataLoader.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Timed passes of each side, after one that warms up.")] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Compare this loader with torch's DataLoader and soundfile on random clips of your recordings.

    All decode with libsndfile, and the recordings of the folder's most common rate and channels are taken. This loader
    is measured decoding each clip, and with a decoded cache that the first pass fills; rounds of the sides take turns.
    """
    from forebay.benchmarks import AudioWork, compare_audio  # imports torch

    work = AudioWork(seconds=seconds, clips=clips, batch_size=batch_size)
    with error_console.status("laying out the recordings as files and as shards") as status:
        comparison = compare_audio(
            path,
            work,
            threads=threads,
            workers=workers,
            rounds=rounds,
            progress=lambda name: status.update(f"measuring: {name}"),
        )
    values = comparison.to_dict()
    if json:
        print_json(values)
        return
    table = bench_table("loader", "clips/s", "first batch", "times torch")
    for side in (comparison.decoded, comparison.decoding, comparison.theirs):
        firsts = side.first_batch_s
        table.add_row(
            side.name,
            speed_cell(side.clips_per_s),
            f"{statistics.median(firsts):.2f} s\n[dim]{min(firsts):.2f}–{max(firsts):.2f}[/]",
            "" if side is comparison.theirs else times_cell(comparison.over(side)),
            style=None if side is comparison.theirs else "green",
        )
    console.print(table)
    formats = ", ".join(f"{count:,} {name}" for name, count in comparison.formats.items())
    console.print(
        f"{comparison.threads} threads here, {comparison.workers} worker processes there; "
        f"{rounds_words(comparison.theirs.clips_per_s)}. A round: {work.clips:,} clips of {work.seconds:g} s from "
        f"{comparison.recordings:,} recordings ({formats}; {comparison.rate:,} Hz, channels: {comparison.channels}, "
        f"{comparison.mean_seconds:.1f} s on average), in batches of {work.batch_size}. soundfile "
        f"{comparison.soundfile}. {machine_words(values)}",
        style="dim",
    )
