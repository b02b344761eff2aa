"""What the loader itself costs: beside a busy training loop, with slow samples, and over the bare kernel."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from forebay.benchmarks.bare import DecodeThreads, decode_pass, library_decoder, make_jobs
from forebay.benchmarks.busy_loop import BusyLoop, SlowSamples
from forebay.benchmarks.gathered import Gathered, gather
from forebay.benchmarks.machine import describe_machine
from forebay.benchmarks.native import native_decoder, native_version
from forebay.benchmarks.turns import PassTime, Ratio, take_turns, time_pass
from forebay.benchmarks.work import ADDRESSABLE, LoaderWork, image_batches, shard_loader, write_both_shards
from forebay.errors import ConfigError
from forebay.loader import DataLoader

__all__ = ["OverheadReport", "OverheadRow", "measure_overhead"]

_SLOW_SHARE = 0.1
_SLOW_TIMES = 10.0
"""One sample in ten costs ten times the others."""
_Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class OverheadRow:
    """The loader under one condition, beside what it could reach at best."""

    name: str
    images_per_s: tuple[float, ...]
    """By round."""
    best: str
    """What the next figure is."""
    best_images_per_s: tuple[float, ...]
    """By round, measured in the same rounds."""

    @property
    def ratio(self) -> Ratio:
        """The share of the best that the loader reaches."""
        return Ratio.of(self.images_per_s, self.best_images_per_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class OverheadReport:
    """All conditions, and how long the first batch of each epoch took."""

    source: str
    work: LoaderWork
    threads: int
    images: int
    """Images a round."""
    distinct_images: int
    addressable: bool
    """Whether the rows that do not say so were measured on crop-addressable JPEGs: where this build can make them."""
    decoder: str
    """What the loader decoded with."""
    rows: tuple[OverheadRow, ...]
    busy_share: tuple[float, ...]
    """By row beside a busy loop, the share of time that the loop did compute, in the median of the rounds."""
    same_batches: bool
    """Whether the batches with slow samples were those without, in the same order."""
    first_batch_s: tuple[float, ...]
    """From `iter(loader)` to the first batch, of every epoch beside an idle loop; the very first one too."""

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, with ratios, and what machine it was."""
        values = dataclasses.asdict(self)
        for told, row in zip(values["rows"], self.rows, strict=True):
            told["ratio"] = row.ratio._asdict()
        values["machine"] = describe_machine()
        return values


def measure_overhead(
    source: str | os.PathLike[str],
    work: LoaderWork,
    *,
    threads: int = 2,
    rounds: int = 5,
    progress: _Progress | None = None,
) -> OverheadReport:
    """Measure every condition in turn with its best.

    Args:
        source: a folder of images, or shards with an image column; images that are no common JPEG are left out.
        work: what is done with an image.
        threads: decode threads; the busy loop is also measured beside one.
        rounds: timed passes of each side.
        progress: told the name of a side before each of its passes.

    Raises:
        ConfigError: no JPEG there.
    """
    if rounds < 1 or threads < 1:
        raise ConfigError(f"rounds={rounds}, threads={threads}; give at least 1 of each")
    if work.normalize:
        raise ConfigError("normalize=True, and the bare kernel is measured on uint8; leave it out")
    tell = progress or (lambda _: None)
    gathered = gather(
        Path(source), images=work.images, multiple=work.batch_size, addressable=True, seed=work.seed, common_jpeg=True
    )
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as temporary:
        shards = write_both_shards(gathered, Path(temporary), addressable=True)
        best_shards = shards.get(ADDRESSABLE, next(iter(shards.values())))
        beside, busy_share, first_batch_s, decoder = _beside_busy_loop(best_shards, work, threads, rounds, tell)
        slow, same_batches = _with_slow_samples(best_shards, work, threads, rounds, tell)
        over_kernel = _over_kernel(shards, gathered, work, threads, rounds, tell)
    return OverheadReport(
        source=str(source),
        work=work,
        threads=threads,
        images=gathered.images,
        distinct_images=len(gathered.distinct),
        addressable=ADDRESSABLE in shards,
        decoder=decoder,
        rows=(*beside, slow, *over_kernel),
        busy_share=tuple(busy_share),
        same_batches=same_batches,
        first_batch_s=tuple(first_batch_s),
    )


def _beside_busy_loop(
    shards: Path, work: LoaderWork, threads: int, rounds: int, progress: _Progress
) -> tuple[list[OverheadRow], list[float], list[float], str]:
    """Rows for one thread and for all; the busy loops' shares; the first batches' seconds; the decoder."""
    shares: dict[int, list[float]] = {}
    sides: dict[str, Callable[[], PassTime]] = {}
    counts = sorted({1, threads})
    with contextlib.ExitStack() as opened:
        for count in counts:
            loader = opened.enter_context(shard_loader(shards, work, threads=count))
            sides[f"{count} beside an idle loop"] = partial(_pass, loader)
            shares[count] = []
            sides[f"{count} beside a busy loop"] = partial(_busy_pass, loader, shares[count])
        passes = take_turns(sides, rounds=rounds, progress=lambda name: progress(f"decode threads: {name}"))
        decoder = loader.stats().decoder
    rows = [
        OverheadRow(
            name=f"beside a busy training loop, {count} decode thread{'s' if count > 1 else ''}",
            images_per_s=_speeds(passes[f"{count} beside a busy loop"]),
            best="beside an idle one",
            best_images_per_s=_speeds(passes[f"{count} beside an idle loop"]),
        )
        for count in counts
    ]
    first_batch_s = [each.first_batch_s for each in passes[f"{threads} beside an idle loop"]]
    return rows, [statistics.median(shares[count][1:]) for count in counts], first_batch_s, decoder


def _busy_pass(loader: DataLoader, shares: list[float]) -> PassTime:
    with BusyLoop() as loop:
        told = _pass(loader)
    shares.append(loop.share)
    return told


def _with_slow_samples(
    shards: Path, work: LoaderWork, threads: int, rounds: int, progress: _Progress
) -> tuple[OverheadRow, bool]:
    """The row, and whether slowness left the batches as they were.

    What the mean cost allows is measured: a loader whose samples all sleep for the mean. A sleep takes longer than it
    was told, the more of them the more, so both are counted, and the difference is taken off.
    """
    with contextlib.ExitStack() as opened:

        def loader_with(slow: SlowSamples) -> DataLoader:
            return opened.enter_context(shard_loader(shards, work, slow, threads=threads))

        plain = loader_with(SlowSamples(share=0, sleep_s=0))
        _pass(plain)  # warms up
        extra_s = (_SLOW_TIMES - 1) * threads / _pass(plain).images_per_s
        even = SlowSamples(share=1, sleep_s=_SLOW_SHARE * extra_s)
        uneven = SlowSamples(share=_SLOW_SHARE, sleep_s=extra_s)
        even_loader, uneven_loader = loader_with(even), loader_with(uneven)
        progress("comparing batches with and without slow samples")
        same_batches = _give_same_batches(plain, uneven_loader)
        uneven.take_slept_s()
        passes = take_turns(
            {
                "samples that all cost the mean": partial(_slow_pass, even_loader, even),
                "one in ten costs ten times": partial(_slow_pass, uneven_loader, uneven),
            },
            rounds=rounds,
            progress=progress,
        )
    evens, unevens = (each[1:] for each in passes.values())
    allowed = [
        threads / (threads / its.images_per_s - its_slept_s + slept_s)
        for (its, its_slept_s), (_, slept_s) in zip(evens, unevens, strict=True)
    ]
    row = OverheadRow(
        name="one sample in ten costs ten times the others",
        images_per_s=tuple(told.images_per_s for told, _ in unevens),
        best="what the mean cost allows",
        best_images_per_s=tuple(allowed),
    )
    return row, same_batches


def _slow_pass(loader: DataLoader, slow: SlowSamples) -> tuple[PassTime, float]:
    """How a pass went, and the seconds that its samples slept, on average."""
    told = _pass(loader)
    return told, slow.take_slept_s() / told.images


def _give_same_batches(one: DataLoader, other: DataLoader) -> bool:
    for loader in (one, other):
        loader.set_epoch(0)
    pairs = zip(one, other, strict=True)
    return all(mine.keys() == its.keys() and all(torch.equal(mine[k], its[k]) for k in mine) for mine, its in pairs)


def _over_kernel(
    shards: Mapping[str, Path],
    gathered: Gathered,
    work: LoaderWork,
    threads: int,
    rounds: int,
    progress: _Progress,
) -> list[OverheadRow]:
    """A row for each form of the images: the whole loader, and its decoder alone on bytes in memory."""
    bare = "native kernel" if native_version() is not None else "library decoder"
    with contextlib.ExitStack() as opened:
        if native_version() is not None:
            decoder = native_decoder(threads, work.size)
        else:
            decoder = library_decoder(opened.enter_context(DecodeThreads(threads)))
        sides: dict[str, Callable[[], PassTime]] = {}
        for name, folder in shards.items():
            loader = opened.enter_context(shard_loader(folder, work, threads=threads))
            sides[name] = partial(_pass, loader)
            jobs = make_jobs(gathered, seed=work.seed, addressable=name == ADDRESSABLE)
            sides[f"{name}: bare {bare}"] = decode_pass(decoder, jobs, batch_size=work.batch_size, size=work.size)
        passes = take_turns(sides, rounds=rounds, progress=progress)
    return [
        OverheadRow(
            name=f"the whole loader on {'addressable' if name == ADDRESSABLE else 'original'} images",
            images_per_s=_speeds(passes[name]),
            best=f"bare {bare}, bytes in memory",
            best_images_per_s=_speeds(passes[f"{name}: bare {bare}"]),
        )
        for name in shards
    ]


def _pass(loader: DataLoader) -> PassTime:
    return time_pass(partial(image_batches, loader))


def _speeds(passes: list[PassTime]) -> tuple[float, ...]:
    """By round, without the pass that warms up."""
    return tuple(each.images_per_s for each in passes[1:])
