"""How many images a second are decoded, cut and resized without a loader: full decodes, and this loader's kernel."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forebay.benchmarks.bare import (
    Decoder,
    DecodeThreads,
    Job,
    decode_pass,
    library_decoder,
    make_jobs,
    opencv_decoder,
    torch_decoder,
)
from forebay.benchmarks.gathered import gather
from forebay.benchmarks.machine import describe_machine
from forebay.benchmarks.native import native_decoder, native_version
from forebay.benchmarks.reference import PixelDifference, pillow_pixels, pixel_difference
from forebay.benchmarks.turns import Ratio, take_turns
from forebay.benchmarks.work import LoaderWork
from forebay.errors import ConfigError

__all__ = ["DecodeComparison", "DecodeSide", "compare_decoders"]

_COMPARED_IMAGES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeSide:
    """One way to decode."""

    name: str
    images_per_s: tuple[float, ...]
    """By round, of all threads together."""
    pixels: PixelDifference
    """From Pillow's antialiased resize of the same windows, so that a gain that changes the work is seen."""
    image_nbytes: float
    """Mean size of what it was given: whole images, or the parts that hold the window."""

    @property
    def median(self) -> float:
        """Images a second in the middle of the rounds."""
        return statistics.median(self.images_per_s)

    def over(self, other: DecodeSide) -> Ratio:
        """How many times as fast as `other`."""
        return Ratio.of(self.images_per_s, other.images_per_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeComparison:
    """Rounds of all ways, interleaved in one run."""

    source: str
    work: LoaderWork
    threads: int
    images: int
    """Images a round."""
    distinct_images: int
    """How many of them are different ones."""
    addressable_images: int
    """How many of the different ones have a crop-addressable form."""
    native: str | None
    """What the native kernel was built on; None where it was left out of this build."""
    sides: tuple[DecodeSide, ...]
    """Full decodes, then this loader's ways."""

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, with medians, ratios to every other side, and what machine it was."""
        values = dataclasses.asdict(self)
        for told, side in zip(values["sides"], self.sides, strict=True):
            told["median_images_per_s"] = side.median
            told["median_images_per_s_and_thread"] = side.median / self.threads
            told["times_as_fast_as"] = {other.name: side.over(other)._asdict() for other in self.sides}
        values["machine"] = describe_machine()
        return values


def compare_decoders(
    source: str | os.PathLike[str],
    work: LoaderWork,
    *,
    threads: int = 1,
    rounds: int = 5,
    opencv: bool = True,
    progress: Callable[[str], None] | None = None,
) -> DecodeComparison:
    """Time every way to decode in turn, on the same windows of the same JPEGs.

    Args:
        source: a folder of images, or shards with an image column; images that are no common JPEG are left out.
        work: size, batch size, images and seed; `normalize` is of no consequence here, pixels are uint8.
        threads: of each side.
        rounds: timed passes of each side.
        opencv: also measure OpenCV's resize.
        progress: told the name of a side before each of its passes.

    Raises:
        ConfigError: no JPEG there, or OpenCV is asked for and missing.
    """
    if rounds < 1 or threads < 1:
        raise ConfigError(f"rounds={rounds}, threads={threads}; give at least 1 of each")
    gathered = gather(
        Path(source), images=work.images, multiple=work.batch_size, addressable=True, seed=work.seed, common_jpeg=True
    )
    jobs = make_jobs(gathered, seed=work.seed)
    with DecodeThreads(threads) as pool:
        sides: dict[str, tuple[Decoder, list[Job]]] = {}
        if opencv:
            sides["simplejpeg + OpenCV"] = opencv_decoder(pool, work.size), jobs
        sides["simplejpeg + torch, antialiased"] = torch_decoder(pool, work.size), jobs
        ours = {"library": library_decoder(pool)}
        if native_version() is not None:
            ours["native"] = native_decoder(threads, work.size)
        for name, decoder in ours.items():
            sides[f"forebay, {name}"] = decoder, jobs
            if gathered.num_addressable:
                sides[f"forebay, {name}, addressable"] = decoder, make_jobs(gathered, seed=work.seed, addressable=True)
        differences = _differences(sides, work)
        passes = take_turns(
            {
                name: decode_pass(decoder, its_jobs, batch_size=work.batch_size, size=work.size)
                for name, (decoder, its_jobs) in sides.items()
            },
            rounds=rounds,
            progress=progress or (lambda _: None),
        )
    return DecodeComparison(
        source=str(source),
        work=work,
        threads=threads,
        images=gathered.images,
        distinct_images=len(gathered.distinct),
        addressable_images=gathered.num_addressable,
        native=native_version(),
        sides=tuple(
            DecodeSide(
                name=name,
                images_per_s=tuple(each.images_per_s for each in passes[name][1:]),
                pixels=differences[name],
                image_nbytes=sum(job.nbytes for job in its_jobs) / len(its_jobs),
            )
            for name, (_, its_jobs) in sides.items()
        ),
    )


def _differences(sides: dict[str, tuple[Decoder, list[Job]]], work: LoaderWork) -> dict[str, PixelDifference]:
    """By side, how far its pixels are from Pillow's on the first jobs."""
    expected = None
    told = {}
    for name, (decoder, jobs) in sides.items():
        first: Sequence[Job] = jobs[:_COMPARED_IMAGES]
        if expected is None:
            expected = np.stack([pillow_pixels(job.data, job.cut, work.size) for job in first])
        made = np.zeros_like(expected)
        decoder(first)(made)
        told[name] = pixel_difference(made, expected)
    return told
