"""`forebay bench cache`: how often the cache spares a fetch, beside the offline optimum and LRU."""

from __future__ import annotations

from typing import Annotated

import typer

from forebay.cli.bench_tables import bench_table
from forebay.cli.console import console, error_console, print_json
from forebay.errors import ConfigError

__all__ = ["bench_cache"]


def bench_cache(
    shards: Annotated[int, typer.Option(min=2, help="Shards of the data set that is imagined.")] = 240,
    room: Annotated[int | None, typer.Option(min=4, help="Shards that the cache holds; by default half.")] = None,
    window: Annotated[int, typer.Option(min=1, help="Shards that the shuffle mixes.")] = 16,
    epochs: Annotated[int, typer.Option(min=2, help="Epochs; the first fills the cache and is not counted.")] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Play the cache's decisions on recorded accesses, without data: so any size can be tried.

    A hit is a use of a shard (one shard in one epoch) that needed no fetch. The optimum is Belady's: it knows all
    accesses beforehand and fetches in the last moment, where this cache fetches the next few shards ahead. LRU keeps
    the shards that were used last.
    """
    from forebay.benchmarks import measure_cache  # imports torch

    room = shards // 2 if room is None else room
    if room > shards:
        raise ConfigError(f"--room {room} for --shards {shards}: give a cache smaller than the data")
    with error_console.status("playing") as status:
        rows = measure_cache(
            shards=shards,
            room=room,
            window=window,
            epochs=epochs,
            progress=lambda name: status.update(f"playing; done: {name}"),
        )
    if json:
        settings = {"shards": shards, "room": room, "window": window, "epochs": epochs}
        print_json({**settings, "rows": [row.to_dict() for row in rows]})
        return
    table = bench_table("read", "this cache", "the optimum", "LRU")
    for row in rows:
        ratios = row.ratios
        table.add_row(row.situation, f"{ratios.ours:.3f}", f"{ratios.optimum:.3f}", f"{ratios.lru:.3f}")
    console.print(table)
    console.print(
        f"Share of the uses of a shard that needed no fetch, epochs 2 to {epochs}: {shards:,} equal shards, a cache "
        f"for {room:,}, windows of {window} where not said otherwise.",
        style="dim",
    )
