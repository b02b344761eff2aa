"""How many images a second this loader and torch's DataLoader make of the same files, round after round in turn."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forebay.benchmarks.gathered import Gathered, gather, write_files
from forebay.benchmarks.machine import describe_machine
from forebay.benchmarks.reference import Cut, PixelDifference, Pixels, draw_cuts, pillow_pixels, pixel_difference
from forebay.benchmarks.torch_peer import (
    FileImages,
    Resizer,
    load_opencv,
    torch_batches,
    torch_loader,
)
from forebay.benchmarks.turns import PassTime, Ratio, take_turns, time_pass
from forebay.benchmarks.work import LoaderWork, image_batches, shard_dataset, shard_loader, write_both_shards
from forebay.errors import ConfigError
from forebay.loader import DataLoader

__all__ = ["LoaderComparison", "SideResult", "compare"]

_PIXEL_TOLERANCE = 1.0
"""Grey levels from Pillow's, on average over a batch: what decoders may differ by with the same windows and filter."""
_COMPARED_IMAGES = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class SideResult:
    """One loader's rounds."""

    name: str
    images_per_s: tuple[float, ...]
    """By round, from `iter()` to the last batch."""
    first_batch_s: tuple[float, ...]
    """By round, from `iter()` to the first batch."""
    very_first_batch_s: float
    """The same in the pass before the rounds, which starts worker processes where there are any."""
    pixels: PixelDifference
    """From Pillow's antialiased resize of the same windows: a filter that is not antialiased is far off."""
    decoder: str | None = None
    """What this loader decoded with; None for torch's."""
    read_nbytes_per_image: float | None = None
    """Encoded bytes that this loader read; None for torch's, which reads whole files."""

    @property
    def median(self) -> float:
        """Images a second in the middle of the rounds."""
        return statistics.median(self.images_per_s)

    def over(self, other: SideResult) -> Ratio:
        """How many times as fast as `other`."""
        return Ratio.of(self.images_per_s, other.images_per_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderComparison:
    """Rounds of all sides, interleaved in one run."""

    source: str
    work: LoaderWork
    threads: int
    """Decode threads of this loader."""
    workers: int
    """Worker processes of torch's."""
    images: int
    """Images a round."""
    distinct_images: int
    """How many of them are different ones."""
    addressable_images: int
    """How many of the different ones have a crop-addressable form; 0 if it was not measured."""
    addressable_before: int
    """How many were crop-addressable as they came, so that the first side too reads only parts of them."""
    image_nbytes: float
    """Mean size of an encoded image."""
    sides: tuple[SideResult, ...]
    """This loader, on the images as they came and crop-addressable, then torch's."""

    @property
    def ours(self) -> tuple[SideResult, ...]:
        """This loader's sides."""
        return tuple(side for side in self.sides if side.decoder is not None)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, with medians, ratios, and what machine it was."""
        values = dataclasses.asdict(self)
        for told, side in zip(values["sides"], self.sides, strict=True):
            told["median_images_per_s"] = side.median
            told["times_as_fast"] = {ours.name: ours.over(side)._asdict() for ours in self.ours}
        values["machine"] = describe_machine()
        return values


def compare(
    source: str | os.PathLike[str],
    work: LoaderWork,
    *,
    threads: int = 2,
    workers: int = 2,
    rounds: int = 5,
    opencv: bool = True,
    pillow: bool = True,
    addressable: bool = True,
    progress: Callable[[str], None] | None = None,
) -> LoaderComparison:
    """Time this loader and torch's in turn, after a pass of each that warms workers and page cache.

    The images are laid out in a temporary folder, as files and as shards; the source is only read.

    Args:
        source: a folder of images, or shards with an image column.
        work: what each side does with an image.
        threads: decode threads of this loader.
        workers: worker processes of torch's.
        rounds: timed passes of each side.
        opencv: also measure torch's loader with OpenCV's resize, which is not antialiased.
        pillow: also measure torch's loader with the transforms that most people run.
        addressable: also measure this loader on crop-addressable JPEGs, where this build can make them.
        progress: told the name of a side before each of its passes, the warming ones included.

    Raises:
        ConfigError: no images there, OpenCV is asked for and missing, or the sides do not do the same work.
    """
    if rounds < 1 or threads < 1 or workers < 0:
        raise ConfigError(f"rounds={rounds}, threads={threads}, workers={workers}; give at least 1, 1 and 0")
    resizers = _resizers(opencv, pillow)
    multiple = work.batch_size * max(workers, 1)
    gathered = gather(Path(source), images=work.images, multiple=multiple, addressable=addressable, seed=work.seed)
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as temporary, contextlib.ExitStack() as opened:
        files = write_files(gathered, Path(temporary) / "files")
        shards = write_both_shards(gathered, Path(temporary), addressable=addressable)
        pixels = {name: _loader_difference(folder, gathered, work) for name, folder in shards.items()}
        loaders = {name: opened.enter_context(shard_loader(shards[name], work, threads=threads)) for name in shards}
        sides: dict[str, Callable[[], PassTime]] = {
            name: _side(partial(image_batches, loader), work) for name, loader in loaders.items()
        }
        for resizer in resizers:
            peer = FileImages(files, work.size, work.normalize, resizer)
            theirs = torch_loader(peer, batch_size=work.batch_size, workers=workers)
            sides[f"torch, {resizer}"] = _side(partial(torch_batches, theirs), work)
            pixels[f"torch, {resizer}"] = _peer_difference(peer, gathered, work)
        passes = take_turns(sides, rounds=rounds, progress=progress or (lambda _: None))
        return LoaderComparison(
            source=str(source),
            work=work,
            threads=threads,
            workers=workers,
            images=gathered.images,
            distinct_images=len(gathered.distinct),
            addressable_images=gathered.num_addressable,
            addressable_before=gathered.addressable_before,
            image_nbytes=gathered.nbytes,
            sides=tuple(_result(name, passes[name], pixels[name], loaders.get(name)) for name in sides),
        )


def _resizers(with_opencv: bool, with_pillow: bool) -> list[Resizer]:
    if with_opencv:
        load_opencv()  # refuses now, not in a worker
    wanted = {Resizer.OPENCV: with_opencv, Resizer.SAME_FILTER: True, Resizer.PILLOW: with_pillow}
    return [resizer for resizer, is_wanted in wanted.items() if is_wanted]


def _side(begin: Callable[[], Iterator[Tensor]], work: LoaderWork) -> Callable[[], PassTime]:
    """One pass of a side, which checks that every batch is what was asked for."""
    dtype = torch.float32 if work.normalize else torch.uint8

    def check(batch: Tensor) -> None:
        assert batch.shape[1:] == (3, work.size, work.size), batch.shape
        assert batch.dtype == dtype, batch.dtype
        assert batch.is_contiguous(memory_format=torch.channels_last)

    return lambda: time_pass(begin, check)


def _result(name: str, passes: list[PassTime], pixels: PixelDifference, loader: DataLoader | None) -> SideResult:
    stats = loader.stats() if loader is not None else None
    return SideResult(
        name=name,
        images_per_s=tuple(each.images_per_s for each in passes[1:]),
        first_batch_s=tuple(each.first_batch_s for each in passes[1:]),
        very_first_batch_s=passes[0].first_batch_s,
        pixels=pixels,
        decoder=stats.decoder if stats is not None else None,
        read_nbytes_per_image=stats.read_nbytes / stats.samples if stats is not None else None,
    )


def _cuts_of_first(gathered: Gathered, work: LoaderWork) -> tuple[list[Cut], Pixels]:
    """The first images' windows, and what Pillow makes of them: uint8 (N, size, size, 3)."""
    first = list(itertools.islice(gathered.all(), _COMPARED_IMAGES))
    cuts = draw_cuts([(each.height, each.width) for each in first], seed=work.seed)
    return cuts, np.stack([pillow_pixels(e.data, cut, work.size) for e, cut in zip(first, cuts, strict=True)])


def _loader_difference(shards: Path, gathered: Gathered, work: LoaderWork) -> PixelDifference:
    """Compare a batch of this loader's with Pillow's.

    Raises:
        ConfigError: they differ by more than the same work could.
    """
    cuts, expected = _cuts_of_first(gathered, work)
    dataset = shard_dataset(shards, dataclasses.replace(work, normalize=False))
    with DataLoader(dataset, len(cuts), seed=work.seed) as loader:
        pixels = next(iter(loader))["image"].permute(0, 2, 3, 1).numpy()
    difference = pixel_difference(pixels, expected)
    if difference.mean > _PIXEL_TOLERANCE:
        raise ConfigError(
            f"the loaders do not do the same work on the first images of {shards}: pixels of the same windows differ "
            f"from Pillow's by {difference.mean:.2f} grey levels on average; please report these images"
        )
    return difference


def _peer_difference(peer: FileImages, gathered: Gathered, work: LoaderWork) -> PixelDifference:
    cuts, expected = _cuts_of_first(gathered, work)
    pairs = zip(gathered.all(), cuts, strict=False)
    pixels = [peer.make(photograph.data, cut.window, flip=cut.flip).numpy() for photograph, cut in pairs]
    return pixel_difference(np.stack(pixels), expected)
