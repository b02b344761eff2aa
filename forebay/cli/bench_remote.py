"""`forebay bench remote`: a cold start over a slow link, on this machine's loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forebay.cache import parse_size
from forebay.cli.bench_tables import bench_table, machine_words
from forebay.cli.console import console, error_console, print_json

__all__ = ["bench_remote"]


def bench_remote(
    size: Annotated[str, typer.Option(help="Bytes of the data set, which is written for this.")] = "1GB",
    rate: Annotated[str, typer.Option(help="Bytes a second of the link.")] = "100MB",
    delay_ms: Annotated[float, typer.Option(min=0, help="Milliseconds that each request waits.")] = 30.0,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples of about 100 kB a batch.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Cold epochs.")] = 3,
    folder: Annotated[
        Path | None, typer.Option(help="Where to put data set and cache: twice its size; by default the temporary one.")
    ] = None,
    streaming: Annotated[
        Path | None,
        typer.Option(help="Python of an environment with mosaicml-streaming: its first batch is measured in turn."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Measure the time to the first batch and a cold epoch over a slow link, shuffled, with an empty cache.

    A server on the loopback, in a process of its own, gives ranges of random bytes at the given rate and delay.
    """
    from forebay.benchmarks import RemoteWork, measure_remote  # imports torch

    work = RemoteWork(nbytes=parse_size(size), rate=parse_size(rate), delay_s=delay_ms / 1000, batch_size=batch_size)
    with error_console.status("measuring"):
        report = measure_remote(work, rounds=rounds, folder=folder, streaming=streaming)
    values = report.to_dict()
    if json:
        print_json(values)
        return
    table = bench_table(
        "cold",
        "first batch, s",
        "epoch, s",
        "of the link",
        "bytes asked",
        "requests",
        "warm, s",
        "local, s",
    )
    for number, each in enumerate(report.rounds, start=1):
        table.add_row(
            str(number),
            f"{each.first_batch_s:.2f}",
            f"{each.epoch_s:.2f}",
            f"{each.link_share:.3f}",
            f"{each.requested_share:.4f}",
            f"{each.requests:,}",
            f"{each.warm_epoch_s:.2f}",
            f"{each.local_epoch_s:.2f}",
        )
    console.print(table)
    console.print(f"a warm epoch from the cache has {report.warm_ratio:.2f} of the speed of the local folder (median)")
    if report.streaming:
        peer = bench_table("MosaicML Streaming", "worker processes", "first batch, s")
        for number, other in enumerate(report.streaming):
            peer.add_row(str(number), str(other.workers), f"{other.first_batch_s:.2f}")
        console.print(peer)
        console.print(f"first batch {report.first_batch_ratio:.1f} times sooner than Streaming's (medians)")
    console.print(f"{report.nbytes:,} bytes in {report.shards} shards; {machine_words(values)}", style="dim")
