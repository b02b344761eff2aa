"""Decoding without a loader: JPEGs in memory and windows drawn beforehand, to output arrays that are used again.

Each way to do it is a `Decoder`; all do the same windows, a batch after the other, with the same number of threads.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import numpy as np
import simplejpeg
import torch

from forebay.benchmarks.gathered import Gathered
from forebay.benchmarks.reference import Cut, Pixels, draw_cuts
from forebay.benchmarks.torch_peer import load_opencv, make_pixels, make_pixels_with_opencv
from forebay.benchmarks.turns import PassTime
from forebay.loader import pixels
from forebay.loader.decode import Scratch, decode_image
from forebay.loader.encoded import JpegPart
from forebay.sharding import bands_of, describe_jpeg

__all__ = [
    "DecodeThreads",
    "Decoder",
    "Job",
    "decode_pass",
    "library_decoder",
    "make_jobs",
    "make_with_library",
    "opencv_decoder",
    "torch_decoder",
]


@dataclass(frozen=True, slots=True)
class Job:
    """One image and what is to be made of it."""

    data: bytes
    height: int
    width: int
    cut: Cut
    part: JpegPart | None
    """Of a crop-addressable JPEG, what would be read of it for this window; then nothing else is looked at."""

    @property
    def nbytes(self) -> int:
        """Bytes that are looked at."""
        return len(self.data) if self.part is None else self.part.nbytes


Decoder = Callable[[Sequence[Job]], Callable[[Pixels], None]]
"""Prepares a batch, while no clock runs. What it returns makes the batch: writes job i to place i of an array of uint8
(B, size, size, 3), any number of times."""
_One = Callable[[Job, Pixels, Scratch], None]
"""Makes one job, with memory of its thread to decode into."""


def make_jobs(gathered: Gathered, *, seed: int, addressable: bool = False) -> list[Job]:
    """The jobs of a pass: the same windows whether the bytes are those that came or the addressable ones."""
    cuts = draw_cuts([(each.height, each.width) for each in gathered.all()], seed=seed)
    jobs = []
    for each, cut in zip(gathered.all(), cuts, strict=True):
        part = _part(each.addressable, cut) if addressable and each.addressable is not None else None
        jobs.append(Job(each.data, each.height, each.width, cut, part))
    return jobs


def _part(data: bytes, cut: Cut) -> JpegPart | None:
    layout = describe_jpeg(data)
    if layout is None:
        return None
    first, end = bands_of(layout, cut.window[0], cut.window[2])
    bounds = list(itertools.accumulate(layout.band_nbytes, initial=layout.header_nbytes))
    view = memoryview(data)
    header, bands = view[: layout.header_nbytes], view[bounds[first] : bounds[end]]
    return JpegPart(header, bands, sum(layout.band_rows[:first]), layout, lambda: view)


def decode_pass(decoder: Decoder, jobs: Sequence[Job], *, batch_size: int, size: int) -> Callable[[], PassTime]:
    """One pass over all jobs, batch by batch into one array, which is made here."""
    out = np.zeros((min(batch_size, len(jobs)), size, size, 3), np.uint8)
    batches = [decoder(jobs[start : start + batch_size]) for start in range(0, len(jobs), batch_size)]
    ends = [*range(batch_size, len(jobs), batch_size), len(jobs)]

    def run() -> PassTime:
        first_s = 0.0
        started = time.monotonic()
        for number, batch in enumerate(batches):
            batch(out[: ends[number] - number * batch_size])
            if not number:
                first_s = time.monotonic() - started
        return PassTime(len(jobs), time.monotonic() - started, first_s)

    return run


class DecodeThreads:
    """Threads for decoders that make one job at a time; each with one thread of torch's and OpenCV's, lest they fight.

    `with` starts and joins them.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(count, "forebay-bench-decode", initializer=torch.set_num_threads, initargs=(1,))
        self._torch_threads = torch.get_num_threads()
        self._of_thread = threading.local()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        torch.set_num_threads(self._torch_threads)  # the newest number is the default of threads to come

    def decoder(self, one: _One) -> Decoder:
        """A decoder whose threads each take the next job of the batch until there is none."""

        def prepare(jobs: Sequence[Job]) -> Callable[[Pixels], None]:
            def decode(out: Pixels) -> None:
                places = iter(range(len(jobs)))

                def work() -> None:
                    scratch = self._scratch()
                    for i in places:  # one iterator for all: under the GIL, each place is given out once
                        one(jobs[i], out[i], scratch)

                for future in [self._pool.submit(work) for _ in range(self._count)]:
                    future.result()

            return decode

        return prepare

    def _scratch(self) -> Scratch:
        kept: dict[str, Scratch] = self._of_thread.__dict__
        return kept.setdefault("scratch", Scratch())


def opencv_decoder(threads: DecodeThreads, size: int) -> Decoder:
    """A full decode by simplejpeg, and OpenCV's bilinear resize, not antialiased, straight into the batch.

    OpenCV is left with one thread for the whole process.

    Raises:
        ConfigError: OpenCV is not installed.
    """
    load_opencv().setNumThreads(0)

    def one(job: Job, out: Pixels, scratch: Scratch) -> None:
        make_pixels_with_opencv(_decode_whole(job, scratch), job.cut.window, size, flip=job.cut.flip, out=out)

    return threads.decoder(one)


def torch_decoder(threads: DecodeThreads, size: int) -> Decoder:
    """A full decode by simplejpeg, and torch's antialiased bilinear resize."""

    def one(job: Job, out: Pixels, scratch: Scratch) -> None:
        out[:] = make_pixels(_decode_whole(job, scratch), job.cut.window, size, flip=job.cut.flip).numpy()

    return threads.decoder(one)


def library_decoder(threads: DecodeThreads) -> Decoder:
    """What this loader does without its native kernel."""
    return threads.decoder(make_with_library)


def make_with_library(job: Job, out: Pixels, scratch: Scratch) -> None:
    """Make one job the way this loader does without its native kernel; of an addressable JPEG, from its part."""
    data: bytes | memoryview = job.data
    top, left, height, width = job.cut.window
    if job.part is not None:
        data, (part_top, part_left) = job.part.cut(job.cut.window)
        top, left = top - part_top, left - part_left
    image = pixels.from_pixels(decode_image(data, orientation="ignore", scratch=scratch))
    small = pixels.resize(pixels.crop(image, (top, left, height, width)), out.shape[:2])
    out[:] = (pixels.flip(small) if job.cut.flip else small)[0].permute(1, 2, 0).numpy()


def _decode_whole(job: Job, scratch: Scratch) -> Pixels:
    decoded: Pixels = simplejpeg.decode_jpeg(job.data, "RGB", buffer=scratch.take(3 * job.height * job.width))
    return decoded
