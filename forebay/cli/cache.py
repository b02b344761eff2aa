"""`forebay cache`: what the caches of this machine hold, and filling, pruning and verifying them beside training."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TimeRemainingColumn, TransferSpeedColumn

from forebay.cache import (
    ENVIRONMENT,
    CacheConfig,
    Contents,
    look_into_cache,
    open_place,
    parse_size,
    prune_cache,
    verify_cache,
    warm_cache,
)
from forebay.cli.bench_tables import bench_table
from forebay.cli.console import console, counted, print_json, progress_bar
from forebay.cli.inspect import human_size
from forebay.errors import ConfigError
from forebay.sharding import EpochOrder, StoredDataset

if TYPE_CHECKING:
    from forebay.loader import DecodedWarmed

__all__ = ["cache_app"]

cache_app = typer.Typer(
    help="""What the shard caches of this machine hold: list, measure, fill, prune, verify.

A cache is what `cache="/nvme/forebay:200GB"` of a `ShardDataset` made; all processes, jobs and data sets of a machine
may share it. All of these commands may run beside training. Where no CACHE is given, it is that of the environment
variable FOREBAY_CACHE.
""",
    no_args_is_help=True,
)

Cache = Annotated[
    str | None,
    typer.Argument(help=f"Folder of a cache, or FOLDER:SIZE as in `cache=`; by default the one of {ENVIRONMENT}."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
BYTES = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())


@cache_app.command("ls")
def cache_ls(cache: Cache = None, json: Json = False) -> None:
    """List the data sets of which shards are kept, and who reads them now.

    A data set is named by its fingerprint and by where it was first read from. `read` says how far each process that
    reads it has come in its epoch: while there is one, its shards are kept by when they are needed next.
    """
    folders = [look_into_cache(folder) for folder in _folders(cache)]
    if json:
        print_json([_to_dict(contents) for contents in folders])
        return
    for contents in folders:
        if not contents.data:
            console.print(f"{escape(str(contents.path))} holds no shards", soft_wrap=True)
            continue
        table = bench_table("data set", "shards", "decoded", "size", "read", "first read from")
        table.title, table.title_justify = escape(str(contents.path)), "left"
        for data in contents.data:
            of = "" if data.shards_of_data is None else f" of {data.shards_of_data:,}"
            table.add_row(
                data.fingerprint[:12],
                f"{data.shards:,}{of}",
                f"{data.decoded_files:,}" if data.decoded_files else "-",
                human_size(data.nbytes),
                ", ".join(f"{100 * position:.0f} %" for position in data.positions) or "-",
                escape(data.origin or "unknown"),
            )
        console.print(table)


@cache_app.command("du")
def cache_du(cache: Cache = None, json: Json = False) -> None:
    """Tell how many bytes a cache takes, and how much of its disk is free."""
    folders = [look_into_cache(folder) for folder in _folders(cache)]
    if json:
        print_json([_to_dict(contents) for contents in folders])
        return
    table = bench_table("folder", "shards", "size", "being fetched", "disk", "free")
    for contents in folders:
        table.add_row(
            escape(str(contents.path)),
            f"{sum(data.shards for data in contents.data):,}",
            human_size(contents.nbytes),
            human_size(contents.unfinished_nbytes),
            human_size(contents.disk_nbytes),
            human_size(contents.disk_free_nbytes),
        )
    console.print(table)


@cache_app.command("warm")
def cache_warm(
    data: Annotated[str, typer.Argument(help="Folder or URL of a data set.")],
    cache: Annotated[
        str | None,
        typer.Argument(help=f"FOLDER:SIZE, as in `cache=`; by default what {ENVIRONMENT} says."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the training to come: shards are fetched in the order of its first use.")
    ] = None,
    epoch: Annotated[int, typer.Option(min=0, help="Its epoch.")] = 0,
    window: Annotated[int | None, typer.Option(min=1, help="Its window, if it is not the default.")] = None,
    threads: Annotated[
        int, typer.Option(min=1, help="Shards that are fetched at a time; and threads that decode.")
    ] = 2,
    decoded: Annotated[
        bool, typer.Option("--decoded", help="Also decode the images, for a data set with `decoded=True`.")
    ] = False,
    shorter: Annotated[
        int | None,
        typer.Option(min=1, help="With --decoded: the transforms begin with T.Resize(shorter=...); else whole images."),
    ] = None,
    center_crop: Annotated[
        int | None, typer.Option(min=1, help="With --decoded: and T.CenterCrop(...) follows.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="With --decoded: an image column; by default all of them.")
    ] = None,
    json: Json = False,
) -> None:
    """Fetch shards before training: as many as have room, verified, in the order in which they will be used.

    What running jobs will use is not evicted. Interrupted, it has lost nothing: what came is kept. Decoded images are
    found by training whose transforms begin with the same resize and central crop, on the same decoder.
    """
    if not decoded and (shorter is not None or center_crop is not None or column):
        raise ConfigError("--shorter, --center-crop and --column say what --decoded keeps; add --decoded")
    config = CacheConfig.choose(cache)
    if config is None:
        raise ConfigError(
            f"no cache is given: write `forebay cache warm {data} /nvme/forebay:200GB`, or set {ENVIRONMENT}"
        )
    stored = open_place(data)
    order = EpochOrder(
        stored.shard_rows,
        fingerprint=stored.fingerprint,
        seed=seed or 0,
        epoch=epoch,
        shuffle=seed is not None,
        window=window,
    )
    with progress_bar("fetching", *BYTES) as progress:
        task = progress.add_task("", total=stored.manifest.nbytes)
        warmed = warm_cache(
            stored, config, order=order, fetch_threads=threads, progress=lambda done: progress.advance(task, done)
        )
    pictures = None
    if decoded:
        pictures = _warm_decoded(
            stored, config, shorter, center_crop, columns=column, seed=seed, epoch=epoch, window=window, threads=threads
        )
    if json:
        told = {"path": data, "cache": [str(folder) for folder in config.folders], **asdict(warmed)}
        print_json(told if pictures is None else {**told, "decoded": asdict(pictures)})
        return
    console.print(
        f"{counted(warmed.fetched, 'shard')} of {escape(stored.name)} fetched, {warmed.present:,} were there"
        + (f"; [yellow]{warmed.without_room:,} have no room[/]" if warmed.without_room else ""),
        soft_wrap=True,
    )
    if pictures is not None:
        console.print(
            f"{counted(pictures.stored, 'decoded image')} stored, {pictures.present:,} were there"
            + (
                f"; [yellow]{pictures.without_room:,} have no room or do not decode[/]" if pictures.without_room else ""
            ),
            soft_wrap=True,
        )


def _warm_decoded(
    stored: StoredDataset,
    config: CacheConfig,
    shorter: int | None,
    center_crop: int | None,
    *,
    columns: list[str] | None,
    seed: int | None,
    epoch: int,
    window: int | None,
    threads: int,
) -> DecodedWarmed:
    from forebay.loader import transforms, warm_decoded  # imports torch

    head: list[transforms.Transform] = []
    if shorter is not None:
        head.append(transforms.Resize(shorter=shorter))
    if center_crop is not None:
        head.append(transforms.CenterCrop(center_crop))
    with progress_bar("decoding", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task("", total=stored.rows)
        return warm_decoded(
            stored,
            config,
            head,
            columns=columns or None,
            seed=seed,
            epoch=epoch,
            window=window,
            threads=threads,
            progress=lambda done: progress.advance(task, done),
        )


@cache_app.command("prune")
def cache_prune(
    cache: Cache = None,
    keep: Annotated[
        str | None, typer.Option(help="How much may stay, such as 50GB; what is needed last goes first.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Remove shards of one data set only: the beginning of its fingerprint.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all shards.")] = False,
    json: Json = False,
) -> None:
    """Remove shards: down to a size (`--keep 50GB`), those of one data set (`--data 3fa9`), or `--all`.

    Jobs that are running go on: they fetch again what they miss. What dead processes left is removed in any case, and
    would be by the next training as well.
    """
    if (keep is not None) + (data is not None) + everything != 1:
        raise ConfigError("say what to remove: one of --keep 50GB, --data FINGERPRINT, --all")
    nbytes = 0 if keep is None else parse_size(keep)
    told = []
    for folder in _folders(cache):
        fingerprint = None if data is None else _fingerprint(look_into_cache(folder), data)
        removed, freed = prune_cache(folder, keep_nbytes=nbytes, fingerprint=fingerprint)
        told.append({"path": str(folder), "removed": removed, "freed_nbytes": freed})
        if not json:
            console.print(
                f"{escape(str(folder))}: {counted(removed, 'shard')} removed, {human_size(freed)} freed", soft_wrap=True
            )
    if json:
        print_json(told)


@cache_app.command("verify")
def cache_verify(cache: Cache = None, json: Json = False) -> None:
    """Read every cached shard and compare its checksum; drop those that are damaged. Exit code 1 when there are any.

    The checksums are those of the data sets' own indexes, of which the cache keeps copies: no source is read. A shard
    that is dropped is fetched again when it is next used.
    """
    told: list[dict[str, Any]] = []
    for folder in _folders(cache):
        with progress_bar("verifying", *BYTES) as progress:
            task = progress.add_task("", total=look_into_cache(folder).nbytes)
            whole, damaged, unknown = verify_cache(folder, progress=lambda done: progress.advance(task, done))  # noqa: B023 - used within the turn
        told.append({"path": str(folder), "whole": whole, "damaged": list(damaged), "unknown": unknown})
        if not json:
            for reason in damaged:
                console.print(f"[red]dropped[/]: {escape(reason)}", soft_wrap=True)
            counts = [f"{counted(whole, 'shard')} whole"]
            if damaged:
                counts.append(f"[red]{len(damaged):,} damaged and dropped[/]")
            if unknown:
                counts.append(f"{unknown:,} of unknown data sets")
            console.print(f"{escape(str(folder))}: {', '.join(counts)}", soft_wrap=True)
    if json:
        print_json(told)
    if any(folder["damaged"] for folder in told):
        raise typer.Exit(1)


def _folders(cache: str | None) -> list[Path]:
    """The folders that an argument names, or else the environment."""
    if cache is not None and (os.path.isdir(cache) or ":" not in cache):
        return [Path(cache)]
    config = CacheConfig.choose(cache)
    if config is None:
        raise ConfigError(f"no cache is given: name its folder, or set {ENVIRONMENT}=/nvme/forebay:200GB")
    return list(config.folders)


def _fingerprint(contents: Contents, beginning: str) -> str:
    found = [data.fingerprint for data in contents.data if data.fingerprint.startswith(beginning)]
    if len(found) != 1:
        have = ", ".join(data.fingerprint[:12] for data in contents.data) or "none"
        raise ConfigError(
            f"--data {beginning!r} names {len(found)} data sets of {contents.path}; it holds shards of: {have}"
        )
    return found[0]


def _to_dict(contents: Contents) -> dict[str, Any]:
    return {**asdict(contents), "path": str(contents.path), "nbytes": contents.nbytes}
